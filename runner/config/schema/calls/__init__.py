"""Rules of the commands' own keys; one class per command, and what else each command accepts."""

from __future__ import annotations

from runner.config.schema.base import ConfigSection
from runner.config.schema.calls.of_datasets import (
    DatasetCheckCall,
    DatasetImportCall,
    DatasetShowCall,
    DatasetSplitCall,
)
from runner.config.schema.calls.of_experiments import ArchitecturesCall, DoctorCall, InitCall, ValidateCall
from runner.config.schema.calls.of_models import (
    ModelsDownloadCall,
    ModelsListCall,
    ModelsPromoteCall,
    ModelsRegisterCall,
    ModelsShowCall,
)
from runner.config.schema.calls.of_runs import (
    RunsCompareCall,
    RunsDeleteCall,
    RunsDiffCall,
    RunsEnvironmentCall,
    RunsListCall,
    RunsPruneCall,
    RunsRepeatCall,
    RunsSyncCall,
    RunsTagCall,
    RunsWatchCall,
)
from runner.config.schema.calls.of_serving import DriftCall, ServeCall
from runner.config.schema.calls.of_trained import EvaluateCall, ExportCall, PredictCall, ReportCall, ResumeCall

# By command; the others take the config of an experiment and nothing else.
CALLS: dict[str, type[ConfigSection]] = {
    "resume": ResumeCall,
    "doctor": DoctorCall,
    "architectures": ArchitecturesCall,
    "init": InitCall,
    "validate": ValidateCall,
    "evaluate": EvaluateCall,
    "predict": PredictCall,
    "drift": DriftCall,
    "export": ExportCall,
    "report": ReportCall,
    "serve": ServeCall,
    "runs list": RunsListCall,
    "runs diff": RunsDiffCall,
    "runs tag": RunsTagCall,
    "runs compare": RunsCompareCall,
    "runs watch": RunsWatchCall,
    "runs sync": RunsSyncCall,
    "runs delete": RunsDeleteCall,
    "runs prune": RunsPruneCall,
    "runs repeat": RunsRepeatCall,
    "models register": ModelsRegisterCall,
    "models list": ModelsListCall,
    "models show": ModelsShowCall,
    "models promote": ModelsPromoteCall,
    "models download": ModelsDownloadCall,
    "runs environment": RunsEnvironmentCall,
    "dataset check": DatasetCheckCall,
    "dataset import": DatasetImportCall,
    "dataset show": DatasetShowCall,
    "dataset split": DatasetSplitCall,
}

# What these commands do with other keys; the rest of the commands in CALLS apply them to the saved config of a run.
TAKES_EXPERIMENT = frozenset({"validate", "dataset check", "dataset show", "doctor"})

TAKES_NOTHING_ELSE = frozenset(
    {
        "init",
        "predict",
        "drift",
        "report",
        "serve",
        "architectures",
        "runs list",
        "runs diff",
        "runs tag",
        "runs compare",
        "runs watch",
        "runs delete",
        "runs prune",
        "models register",
        "models list",
        "models show",
        "models promote",
        "models download",
        "runs environment",
        "dataset import",
        "dataset split",
    }
)

# Groups and keys of the saved config that these commands may change; others are refused, as the model is trained.
LAID_OVER: dict[str, tuple[str, ...]] = {
    "evaluate": ("data", "trainer", "dist"),
    "export": ("data.root", "data.train", "data.val", "data.test"),
    "runs sync": ("tracker",),
}
