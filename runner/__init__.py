"""A declarative, YAML-driven training runner for image classification on PyTorch.

From Python: :func:`load_config`, :func:`fit` and :func:`load_model`. Importing this package imports no torch.
"""

TYPE_CHECKING = False  # not typing's: `python -m runner` would import a typing.py of the working folder
if TYPE_CHECKING:
    from runner.library import fit as fit
    from runner.library import load_config as load_config
    from runner.library import load_model as load_model
    from runner.training.assemble_trained import LoadedModel as LoadedModel

__all__ = ["fit", "load_config", "load_model"]


def __getattr__(name: str) -> object:
    if name in ("fit", "load_config", "load_model"):
        from runner import library  # noqa: PLC0415

        return getattr(library, name)
    raise AttributeError(f"module 'runner' has no attribute {name!r}")
