"""Runs on disk, and the list of runs.

* `Run`: a run in its folder, opened for reading or for writing.
* `RunFolder`: the paths of a run's files. It needs neither a recipe nor torch, so `nmtkit runs` starts quickly.
* `RunLock`: the exclusive right to write in a folder, held by `Run` and by commands that propose, remove or rename a
  run.
* `EnsembleRun`: several runs that decode as an ensemble.
* `SavedStage`: a stage of a run, with its recipe, checkpoints and text.
* `FineTuningOrigin`: the record of the initial weights of a run.
* `MetricsLog` and `TrainLog`: the logs of a run, for programs and for people.
"""
