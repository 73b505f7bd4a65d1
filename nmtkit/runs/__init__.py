"""Runs on disk, and the list of runs.

* `Run`: a run in its folder, opened for reading or for writing.
* `RunFolder`: the names of a run's files; needs neither a recipe nor torch, so `nmtkit runs` starts
  quickly.
* `RunLock`: the right to write in a folder, held by `Run` and by commands that propose, remove or
  rename a run.
* `EnsembleRun`: several runs that decode as one.
* `SavedStage`: a stage of a run, with its recipe, checkpoints and text.
* `FineTuningOrigin`: the record of the initial weights of a training.
* `MetricsLog` and `TrainLog`: the logs of a training for programs and for people.
"""
