"""Two parts of a step that torch leaves slow on the CPU, done in another way.

Both stand around code that knows nothing of them, and see each call of torch that is made there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from runner.dist.device import Precision, bf16_features_of_the_cpu

# Of one image in a convolution's result; and weights of a convolution: those of 128 to 256 channels, 3 × 3. With more
# positions or fewer weights there is little to gain, and something to lose (`benchmarks/small_maps.py`).
_MAX_POSITIONS = 16
_MIN_WEIGHTS = 128 * 256 * 9
_ONES = (1, 1)
# That autocast turns into bf16.
_CAST_DTYPES = frozenset({torch.float32, torch.bfloat16})
_Pair = tuple[int, int]


def step_without_copies(device: torch.device) -> AbstractContextManager[object]:
    """Around `optimizer.step()`: the same step, bit for bit, but no gradient is copied for it.

    torch's fused steps go through a parameter, its gradient and its state as they lie in memory, whatever the strides,
    but on the CPU they first copy each gradient that is channels_last, and throw the copy away (`grad.contiguous()` in
    FusedSGDKernel.cpp and FusedAdamKernel.cpp, seen in torch 2.15). They are given flat views instead, of which
    there is nothing to copy.
    """
    return _InMemoryOrder() if device.type == "cpu" else nullcontext()


def weight_gradients_by_product(device: torch.device, precision: Precision) -> AbstractContextManager[object]:
    """Around a forward pass in bf16: some convolutions get their weights' gradients by a matrix product.

    Those with many weights and few positions: the last stages of a ResNet on small images. There oneDNN takes up to
    six times as long as the same sum written as one product over all images: of the gradients and the patches that
    the kernel sees (`benchmarks/small_maps.py`). The rounding is another, the error is as small.

    Does nothing in other formats, on other devices, and on other CPUs than those with AVX-512 bf16 and without AMX:
    for those it was not measured.
    """
    is_quicker = device.type == "cpu" and precision.name == "bf16" and _was_measured_on_such_a_cpu()
    return _ByProduct() if is_quicker else nullcontext()


def _was_measured_on_such_a_cpu() -> bool:
    features = bf16_features_of_the_cpu()
    return features["AVX-512 bf16"] and not features["AMX"]


class _InMemoryOrder(TorchFunctionMode):
    def __torch_function__(
        self, func: Callable[..., Any], types: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> object:
        if func in (torch._fused_sgd_, torch._fused_adamw_):
            args = tuple([_flat(tensor) for tensor in tensors] for tensors in args)
        return func(*args, **(kwargs or {}))


def _flat(tensor: Tensor) -> Tensor:
    is_channels_last = tensor.ndim == 4 and tensor.is_contiguous(memory_format=torch.channels_last)
    return tensor.as_strided((tensor.numel(),), (1,)) if is_channels_last else tensor


class _ByProduct(TorchFunctionMode):
    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Collection[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> object:
        # As torch.nn.Conv2d calls it: images, weight, bias, stride, padding, dilation, groups.
        is_layers_call = func is functional.conv2d and len(args) == 7 and not kwargs
        if is_layers_call and not _is_seen_by_others(types) and _is_worth_it(args):
            images, weight, _, stride, padding, *_ = args
            return _Convolution.apply(images.bfloat16(), weight.bfloat16(), stride, padding)
        return func(*args, **(kwargs or {}))


def _is_seen_by_others(types: Collection[type]) -> bool:
    """A compiler and torch.func's transforms want to see a plain convolution, a tensor of another type its own."""
    return bool(types) or torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active()


def _is_worth_it(arguments: tuple[Any, ...]) -> bool:
    images, weight, bias, stride, padding, dilation, groups = arguments
    if weight.numel() < _MIN_WEIGHTS or not weight.requires_grad or bias is not None:
        return False
    is_bf16 = torch.is_autocast_enabled("cpu") and torch.get_autocast_dtype("cpu") is torch.bfloat16
    is_plain = groups == 1 and dilation == _ONES and _is_pair(stride) and _is_pair(padding)
    if not is_bf16 or not is_plain or not {images.dtype, weight.dtype} <= _CAST_DTYPES:
        return False
    kernel = tuple(weight.shape[2:])
    sizes = zip(images.shape[-2:], kernel, stride, padding, strict=True)
    num_positions = math.prod((size + 2 * pad - extent) // step + 1 for size, extent, step, pad in sizes)
    return images.ndim == 4 and kernel != _ONES and num_positions <= _MAX_POSITIONS


def _is_pair(value: object) -> bool:
    """As torch.nn.Conv2d gives them; a user's own call may give a number, or words."""
    return isinstance(value, tuple) and len(value) == 2


class _Convolution(torch.autograd.Function):
    """A convolution without bias, of images of shape (N, C, H, W) in bf16."""

    @staticmethod
    def forward(ctx: Any, images: Tensor, weight: Tensor, stride: _Pair, padding: _Pair) -> Tensor:  # noqa: ANN401
        ctx.save_for_backward(images, weight)
        ctx.stride, ctx.padding = stride, padding
        return functional.conv2d(images, weight, None, stride, padding)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:  # noqa: ANN401
        images, weight = ctx.saved_tensors
        of_images = of_weight = None
        if ctx.needs_input_grad[0]:
            wanted = [True, False, False]
            of_images, _, _ = torch.ops.aten.convolution_backward(
                gradient, images, weight, None, ctx.stride, ctx.padding, _ONES, False, [0, 0], 1, wanted
            )
        if ctx.needs_input_grad[1]:
            of_weight = _weight_gradient(images, gradient, weight.shape, ctx.stride, ctx.padding)
        return of_images, of_weight, None, None


def _weight_gradient(images: Tensor, gradient: Tensor, shape: torch.Size, stride: _Pair, padding: _Pair) -> Tensor:
    """The sum over all positions of all images of: gradient there × patch of the images that the kernel sees there."""
    num_out, num_in, height, width = shape
    vertical, horizontal = padding
    padded = functional.pad(images.permute(0, 2, 3, 1), (0, 0, horizontal, horizontal, vertical, vertical))
    patches = padded.unfold(1, height, stride[0]).unfold(2, width, stride[1])  # N, rows, columns, C, height, width
    patches = patches.permute(0, 1, 2, 4, 5, 3).reshape(-1, height * width * num_in)
    product = gradient.permute(0, 2, 3, 1).reshape(-1, num_out).t() @ patches
    return product.view(num_out, height, width, num_in).permute(0, 3, 1, 2)
