"""`apex.optimizers.fused_adam`: Adam in one kernel for the parameters of each type."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NoReturn

import torch

from windtunnel.described import kernel
from windtunnel.libraries import refuse, unanswered

LIBRARY = "apex 0.1"
Tensor = torch.Tensor
TYPES = (torch.float16, torch.bfloat16, torch.float32)


def __getattr__(name: str) -> NoReturn:
    refuse(LIBRARY, "apex.optimizers.fused_adam", name)


@kernel(
    "apex::multi_tensor_adam",
    like="aten::_fused_adam_",
    define="(Tensor[] grads, Tensor(a!)[] params, Tensor(b!)[] exp_avgs, Tensor(c!)[] exp_avg_sqs, float lr, "
    "float beta1, float beta2, float eps, int step, bool decoupled, bool bias_correction, float weight_decay) -> ()",
)
def _adam(  # type: ignore[no-untyped-def]
    grads, params, exp_avgs, exp_avg_sqs, lr, beta1, beta2, eps, step, decoupled, bias_correction, weight_decay
):
    first = 1.0 - beta1**step if bias_correction else 1.0
    second = 1.0 - beta2**step if bias_correction else 1.0
    for grad, param, mean, square in zip(grads, params, exp_avgs, exp_avg_sqs, strict=True):
        given, weight = grad.float(), param.float()
        if not decoupled:
            given = given + weight_decay * weight
        mean.copy_(beta1 * mean + (1.0 - beta1) * given)
        square.copy_(beta2 * square + (1.0 - beta2) * given * given)
        update = (mean / first) / ((square / second).sqrt() + eps)
        if decoupled:
            update = update + weight_decay * weight
        param.copy_(weight - lr * update)


class FusedAdam(torch.optim.Optimizer):
    """AdamW, or Adam with `adam_w_mode=False`; its state is float32."""

    def __init__(
        self,
        params: Iterable[Tensor],
        lr: float = 1e-3,
        bias_correction: bool = True,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        adam_w_mode: bool = True,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
        set_grad_none: bool = True,
        capturable: bool = False,
        master_weights: bool = False,
    ) -> None:
        if amsgrad:
            raise RuntimeError("FusedAdam does not support the AMSGrad variant.")
        if capturable or master_weights:
            unanswered(LIBRARY, f"FusedAdam with {'capturable' if capturable else 'master_weights'}")
        told = {"lr": lr, "bias_correction": bias_correction, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, told)
        self.adam_w_mode, self.set_grad_none = bool(adam_w_mode), set_grad_none

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Take the gradients away, or fill them with zeros."""
        super().zero_grad(set_to_none=self.set_grad_none and set_to_none)

    @torch.no_grad()
    def step(self, closure: Callable[[], object] | None = None) -> object:  # type: ignore[override]
        """One step: a kernel for the parameters of each type in each group."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            group["step"] = group.get("step", 0) + 1
            lists: dict[torch.dtype, tuple[list[Tensor], ...]] = {}
            for param in group["params"]:
                if param.grad is None:
                    continue
                if param.grad.is_sparse:
                    words = "FusedAdam does not support sparse gradients, please consider SparseAdam instead"
                    raise RuntimeError(words)
                if param.dtype not in TYPES:
                    raise RuntimeError("FusedAdam only support fp16 and fp32.")
                state = self.state[param]
                if not state:
                    state["exp_avg"] = torch.zeros_like(param, dtype=torch.float32)
                    state["exp_avg_sq"] = torch.zeros_like(param, dtype=torch.float32)
                of_type = lists.setdefault(param.dtype, ([], [], [], []))
                for one, other in zip(of_type, (param.grad, param, state["exp_avg"], state["exp_avg_sq"]), strict=True):
                    one.append(other)
            told = group["lr"], *group["betas"], group["eps"], group["step"], self.adam_w_mode
            for of_type in lists.values():
                torch.ops.apex.multi_tensor_adam(*of_type, *told, group["bias_correction"], group["weight_decay"])
        return loss
