"""The runner's sweeper and launcher, where Hydra looks for plugins: it accepts none that lies elsewhere.

Every Hydra app of the same environment imports this module to look for plugins, so that it imports nothing of the
runner before it is used.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.plugins import Plugins
from hydra.core.utils import JobReturn, JobStatus
from hydra.plugins.launcher import Launcher
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig


class TrialLauncher(Launcher):
    """Runs each job in a process of its own (hydra/launcher=trials)."""

    def __init__(self) -> None:
        self.context: HydraContext | None = None
        self.config: DictConfig | None = None
        self.found_before: tuple[Any, ...] = ()
        self.command: Any = None

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        """Called by Hydra first."""
        self.context, self.config = hydra_context, config
        self.found_before = getattr(task_function, "found_before", ())
        self.command = getattr(task_function, "command", None)

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        """Run a batch of jobs that some other sweeper has made up; returns the best value of each."""
        from runner.tools.sweep.begin import run_batch  # noqa: PLC0415
        from runner.tools.sweep.composer import Composer  # noqa: PLC0415

        assert self.context is not None and self.config is not None, "Hydra calls setup first"
        composer = Composer(
            loader=self.context.config_loader,
            master=self.config,
            shared=(),
            axes=(),
            found_before=self.found_before,
            command=self.command,
        )
        ends = run_batch(composer, [list(overrides) for overrides in job_overrides], initial_job_idx)
        return [
            JobReturn(
                overrides=overrides,
                status=JobStatus.FAILED if isinstance(value, Exception) else JobStatus.COMPLETED,
                _return_value=value,
            )
            for overrides, value in zip(job_overrides, ends, strict=True)
        ]


class TrialSweeper(Sweeper):
    """A grid or a search (hydra/sweeper=grid, random, tpe, gp, nsga2)."""

    def __init__(
        self,
        sampler: Literal["grid", "random", "tpe", "gp", "nsga2"],
        params: Mapping[str, str] | None = None,
    ) -> None:
        self.sampler = sampler
        self.params = params or {}
        self.context: HydraContext | None = None
        self.config: DictConfig | None = None
        self.launcher: Launcher | None = None
        self.found_before: tuple[Any, ...] = ()
        self.command: Any = None

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        """Called by Hydra first."""
        self.context, self.config = hydra_context, config
        self.found_before = getattr(task_function, "found_before", ())
        self.command = getattr(task_function, "command", None)
        self.launcher = Plugins.instance().instantiate_launcher(
            hydra_context=hydra_context, task_function=task_function, config=config
        )

    def sweep(self, arguments: list[str]) -> None:
        """Run the sweep that these overrides describe.

        Raises:
            RunnerError: a mistake in the config, or a failed sweep.
        """
        from runner.config.overrides import permissive  # noqa: PLC0415
        from runner.tools.sweep.axes import axes_of  # noqa: PLC0415
        from runner.tools.sweep.begin import run_sweep  # noqa: PLC0415
        from runner.tools.sweep.composer import Composer, sweep_config  # noqa: PLC0415

        assert self.context is not None and self.config is not None, "Hydra calls setup first"
        config = sweep_config(self.config)
        in_yaml = [permissive(f"{key}={value}") for key, value in self.params.items()]
        parser = OverridesParser.create(config_loader=self.context.config_loader)
        shared, axes = axes_of(parser.parse_overrides([*in_yaml, *arguments]), config.space)
        composer = Composer(
            loader=self.context.config_loader,
            master=self.config,
            shared=shared,
            axes=axes,
            found_before=self.found_before,
            command=self.command,
        )
        launcher = None if isinstance(self.launcher, TrialLauncher) else self.launcher
        run_sweep(composer, config, self.sampler, launcher=launcher)
