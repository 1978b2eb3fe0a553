"""Users' own transforms, which installed packages offer as entry points of the group `runner.transforms`."""

from __future__ import annotations

from torch import Tensor, nn

from runner.base.errors import ConfigError, Problem
from runner.base.reasons import first_line
from runner.config.schema.checks.parts import TRANSFORMS, call_part
from runner.config.schema.transforms import CustomTransform

_KEY = "part"


class UserTransform(nn.Module):
    """Calls a user's transform and checks what it returns."""

    def __init__(self, transform: CustomTransform) -> None:
        """Build it.

        Raises:
            ConfigError: the part can't be used, or returns nothing that can be called.
        """
        super().__init__()
        self._name = transform.part
        self._step = call_part(TRANSFORMS, transform.part, transform.arguments, _KEY)
        if not callable(self._step):
            raise self._wrong(f"returned a {type(self._step).__name__}; it must return a function of an image")

    def forward(self, image: Tensor) -> Tensor:
        """Transform an image of shape (channels, height, width).

        Raises:
            ConfigError: the user's function raises an error, or returns another type or shape.
        """
        try:
            result = self._step(image)
        except Exception as error:  # a user's function may raise anything
            raise self._wrong(f"failed: {type(error).__name__}: {first_line(error)}") from error
        if not isinstance(result, Tensor):
            raise self._wrong(f"returned a {type(result).__name__}; it must return a tensor")
        if result.shape != image.shape or result.dtype != image.dtype:
            raise self._wrong(
                f"returned {result.dtype} of shape {tuple(result.shape)}; it must keep {image.dtype} of shape "
                f"{tuple(image.shape)}"
            )
        return result

    def _wrong(self, message: str) -> ConfigError:
        return ConfigError([Problem(key=_KEY, value=self._name, has_value=True, message=f"this transform {message}")])
