"""Rules of the group `tracker`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from runner.base.user_paths import scheme_of
from runner.config.schema.base import AS_TYPED, ConfigSection

_SCHEMES = ("http", "https", "sqlite", "postgresql", "mysql", "mssql")


def _address(uri: str) -> str:
    scheme = (scheme_of(uri) or "").partition("+")[0]
    if scheme not in _SCHEMES:
        raise ValueError("must begin with http://, https://, sqlite:/// or the like")
    if scheme in ("http", "https") and ("?" in uri or "#" in uri):
        # MLflow puts its paths behind the address, so that neither can work, and what they hold may be a token.
        raise ValueError("must be an address without ? and #; a token belongs into MLFLOW_TRACKING_TOKEN")
    return uri


class TrackerConfig(ConfigSection):
    """Trackers, which are told of a run as its folder grows. They run beside it, and it never waits for them but at its
    end, for a while."""

    use: dict[Literal["mlflow", "wandb", "csv"], bool]
    """Which trackers; set by the option of the group. mlflow: a server of MLflow; wandb: Weights & Biases, also with
    WANDB_MODE=offline; csv: the file metrics.csv in the run folder."""
    uri: Annotated[Annotated[str, Field(max_length=1_000), AfterValidator(_address)] | None, AS_TYPED]
    """Address of MLflow's server or database; null: MLFLOW_TRACKING_URI of the environment. A saved one counts only
    where it is typed again. W&B reads its own variables, such as WANDB_BASE_URL."""
    project: Annotated[str, Field(min_length=1, max_length=120), AS_TYPED]
    """MLflow's experiment, W&B's project."""
    artifacts: Literal["none", "model", "all"]
    """Which files are sent at the end: the packaged model, or with all also the report, the config, the metrics, the
    evaluation and the list of packages."""
    wait_seconds: Annotated[float, Field(ge=0, le=3600)]
    """How long the end of a run waits until all is sent; `runs sync` sends the rest."""

    @property
    def names(self) -> tuple[str, ...]:
        """The trackers that are in use."""
        return tuple(name for name, is_used in self.use.items() if is_used)

    def __hash__(self) -> int:
        # A dict has no hash.
        return hash(self.model_dump_json())
