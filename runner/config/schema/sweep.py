"""Rules of the group `sweep`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from runner.config.schema.base import AS_TYPED, ConfigSection, LocalPath

Metric = Literal[
    "val_top1",
    "val_top5",
    "val_loss",
    "train_top1",
    "train_loss",
    "train_images_per_second",
    "epoch_seconds",
]
Direction = Literal["maximize", "minimize"]
Scalar = bool | int | float | str | None
_LOWER_IS_BETTER = ("val_loss", "train_loss", "epoch_seconds")


class _Space(ConfigSection):
    when: dict[str, Scalar | tuple[Scalar, ...]] = Field(default_factory=dict)
    """Search this key only where these keys of the sweep, listed before it, have this value or one of a list."""


class ChoiceSpace(_Space):
    """One of some values."""

    kind: Literal["choice"]
    values: Annotated[tuple[Scalar, ...], Field(min_length=1)]


class _Range(_Space):
    low: float
    high: float

    @model_validator(mode="after")
    def _in_order(self) -> _Range:
        if self.low >= self.high:
            raise ValueError(f"low = {self.low:g} must be less than high = {self.high:g}")
        if self.low <= 0 and "log" in str(getattr(self, "kind", "")):
            raise ValueError(f"low = {self.low:g} must be greater than 0 on a logarithmic scale")
        return self


class UniformSpace(_Range):
    """Uniform over low … high; loguniform: its logarithm is uniform."""

    kind: Literal["uniform", "loguniform"]


class QuantizedUniformSpace(_Range):
    """As uniform or loguniform, rounded to a multiple of step."""

    kind: Literal["quniform", "qloguniform"]
    step: Annotated[float, Field(gt=0)]


class NormalSpace(_Space):
    """A normal distribution; lognormal: of the logarithm of the value."""

    kind: Literal["normal", "lognormal"]
    mu: float
    sigma: Annotated[float, Field(gt=0)]


class QuantizedNormalSpace(_Space):
    """As normal or lognormal, rounded to a multiple of step."""

    kind: Literal["qnormal", "qlognormal"]
    mu: float
    sigma: Annotated[float, Field(gt=0)]
    step: Annotated[float, Field(gt=0)]


Space = Annotated[
    ChoiceSpace | UniformSpace | QuantizedUniformSpace | NormalSpace | QuantizedNormalSpace,
    Field(discriminator="kind"),
]


class PruningConfig(ConfigSection):
    """When and how strictly sweep.pruner ends trials."""

    evaluation_interval: Annotated[int, Field(ge=1)]
    """Epochs between two decisions on a trial."""
    delay_evaluation: Annotated[int, Field(ge=0)]
    """Epochs of a trial before the first decision on it."""
    startup_trials: Annotated[int, Field(ge=0)]
    """Trials that must have ended before any is pruned (median, percentile)."""
    percentile: Annotated[float, Field(gt=0, lt=100)]
    """percentile: the share of trials, in percent, that continue."""
    slack_factor: Annotated[float, Field(gt=0)] | None
    """bandit: allowed distance to the best of all trials as a ratio; either this or slack_amount."""
    slack_amount: Annotated[float, Field(gt=0)] | None
    """bandit: allowed distance to the best of all trials in the units of the metric."""
    truncation_percent: Annotated[float, Field(gt=0, lt=100)]
    """truncation: the share of the running trials, in percent, that is ended at each decision."""
    min_epochs: Annotated[int, Field(ge=1)]
    """successive_halving and hyperband: epochs until the first decision."""
    reduction_factor: Annotated[int, Field(ge=2)]
    """successive_halving and hyperband: one in this many trials continues."""


class SweepConfig(ConfigSection):
    """What a sweep (-m) searches, how many trials run at once, and what ends them early."""

    dir: Annotated[LocalPath | None, AS_TYPED]
    """Folder of a sweep; null makes a new one under OUTPUT_DIR/sweeps. In an existing one, only missing trials run."""
    parallel: Literal["auto"] | Annotated[int, Field(ge=1)]
    """Trials at once, among which GPUs and cores are divided; auto takes as many as there are GPUs, or cores, for the
    processes of a trial."""
    dry_run: bool
    """Show the trials and start none."""
    on_failure: Literal["continue", "stop", "retry"]
    """After a failed trial: continue with the others; stop the sweep; or restart it from its newest checkpoint."""
    max_failures: Annotated[int, Field(ge=0)] | None
    """Failed trials after which the sweep is stopped (null = no limit)."""
    max_retries: Annotated[int, Field(ge=0)]
    """Times that on_failure=retry starts a failed trial again."""
    zip: tuple[Annotated[tuple[str, ...], Field(min_length=2)], ...]
    """Keys whose values are paired instead of combined, such as [[optimizer.lr,data.batch_size]]."""
    metric: Metric | Annotated[tuple[Metric, ...], Field(min_length=1)] | None
    """Metric to optimize, its best over the epochs of a trial; several for a trade-off; null is trainer.monitor."""
    direction: Literal["auto"] | Direction | tuple[Direction, ...]
    """Whether larger or smaller is better, for each metric; auto knows."""
    num_trials: Annotated[int, Field(ge=1)]
    """Trials of a search; a grid has as many as it has combinations."""
    timeout_minutes: Annotated[float, Field(gt=0)] | None
    """Minutes after which no further trial is started (null = no limit)."""
    seed: Annotated[int, Field(ge=0, lt=2**31)]
    """Seed of what a search proposes."""
    space: dict[str, Space]
    """Keys to search and how: {optimizer.lr: {kind: loguniform, low: 1e-4, high: 1}}; besides what the command line
    sweeps."""
    starting_points: tuple[dict[str, Scalar], ...]
    """Values of searched keys that are tried first."""
    storage: str | None
    """Where Optuna keeps the search; null is a file in the folder of the sweep. An address such as
    postgresql://host/name lets several machines share a search."""
    study: str | None
    """Name of the search within sweep.storage, the same for all that share it; null is the name of the folder."""
    pruner: Literal["none", "median", "percentile", "successive_halving", "hyperband", "bandit", "truncation"]
    """Policy that ends trials early after an epoch; needs Optuna, as every search does."""
    pruning: PruningConfig
    """When and how strictly the pruner ends trials."""

    def __hash__(self) -> int:
        # A dict has no hash.
        return hash(self.model_dump_json())

    @property
    def directions(self) -> tuple[Direction, ...]:
        """For each metric, whether larger or smaller values are better."""
        assert self.metric is not None, "filled in by `with_metric`"
        if self.direction == "auto":
            return tuple("minimize" if name in _LOWER_IS_BETTER else "maximize" for name in self.metrics)
        return (self.direction,) if isinstance(self.direction, str) else self.direction

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """The metrics to optimize; the best trial is chosen by the first."""
        assert self.metric is not None, "filled in by `with_metric`"
        return (self.metric,) if isinstance(self.metric, str) else self.metric

    def with_metric(self, monitor: Metric) -> SweepConfig:
        """Replace a metric of null by `monitor`."""
        return self if self.metric is not None else self.model_copy(update={"metric": monitor})
