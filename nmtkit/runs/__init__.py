"""A run on disk, and the list of runs.

* `Run`: a run in its folder, opened for reading or for writing.
* `RunFolder`: the names of its files; needs neither a recipe nor torch, so that `nmtkit runs` starts at once.
* `RunLock`: the right to write in a folder, which `Run` holds, and commands that propose, remove or rename a run.
* `EnsembleRun`: several runs that decode as one.
* `SavedStage`: a stage of a run, with its recipe, checkpoints and text.
* `FineTuningOrigin`: the record of the weights that training began with.
* `MetricsLog` and `TrainLog`: what a training logs, for programs and for people.
"""
