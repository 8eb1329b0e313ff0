"""Unrolling recurrent cells over time, with gradients written out.

Under autograd, an unroll spends most of its time in overhead. With the gradient written out, all
that does not depend on the previous step is computed for all steps at once, including the gradient
of the recurrent weights; and the graph of a compiled step is half as large.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def lstm_unroll(
    from_x: Tensor, h: Tensor, c: Tensor, keep: Tensor, weight: Tensor
) -> tuple[Tensor, Tensor]:
    """Unroll an LSTM layer.

    Args:
        from_x: [T, B, 4 H] what the inputs (and the bias) give to the gates input, forget, output
            and new.
        h: [B, H] the output before step 0.
        c: [B, H] the cell before step 0.
        keep: [T, B, 1], 0 where both restart from 0 before the step, else 1.
        weight: [4 H, H] from the last output to the gates.

    Returns:
        Outputs [T, B, H], and the cell after the last step [B, H].
    """
    if torch.jit.is_tracing():  # type: ignore[attr-defined]
        return _LSTM.forward(_NoGradient(), from_x, h, c, keep, weight)
    return _LSTM.apply(from_x, h, c, keep, weight)


def gru_unroll(from_x: Tensor, h: Tensor, keep: Tensor, weight: Tensor) -> Tensor:
    """Unroll a GRU layer, in the form where the reset gate acts after the product.

    Args:
        from_x: [T, B, 3 H] what the inputs (and the bias) give to the gates reset and keep and to
            the new state.
        h: [B, H] the state before step 0.
        keep: [T, B, 1], 0 where the state restarts from 0 before the step, else 1.
        weight: [3 H, H] from the last state to these.

    Returns:
        States [T, B, H].
    """
    if torch.jit.is_tracing():  # type: ignore[attr-defined]
        return _GRU.forward(_NoGradient(), from_x, h, keep, weight)
    return _GRU.apply(from_x, h, keep, weight)


class _NoGradient:
    """Stands for a context where only the forward pass is wanted: a tracer cannot enter `apply`."""

    def save_for_backward(self, *tensors: Tensor) -> None:
        pass


class _LSTM(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, from_x: Tensor, h: Tensor, c: Tensor, keep: Tensor, weight: Tensor
    ) -> tuple[Tensor, Tensor]:
        size, weight_t = weight.shape[1], weight.t()
        rows: list[tuple[Tensor, ...]] = []
        for x, kept in zip(from_x.unbind(0), keep.unbind(0), strict=True):
            h, before = h * kept, c * kept
            gates = torch.addmm(x, h, weight_t)
            ifo, new = torch.sigmoid(gates[:, : 3 * size]), torch.tanh(gates[:, 3 * size :])
            i, f, o = ifo.chunk(3, dim=1)
            # c' = f c + i g,  h' = o tanh(c')
            c = f * before + i * new
            bent = torch.tanh(c)
            rows.append((h, before, ifo, new, bent))
            h = o * bent
        saved = [torch.stack(column) for column in zip(*rows, strict=True)]
        ctx.save_for_backward(*saved, keep, weight)
        _, _, ifo_all, _, bent_all = saved
        return ifo_all[..., 2 * size :] * bent_all, c

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        d_out, dc = grads
        h, before, ifo, new, bent, keep, weight = ctx.saved_tensors
        size = weight.shape[1]
        i, f, o = ifo.chunk(3, dim=-1)
        slope = ifo * (1.0 - ifo)
        # The gradient of c' (for the gate o: of h') with respect to each gate before its
        # nonlinearity.
        by_i, by_f = new * slope[..., :size], before * slope[..., size : 2 * size]
        by_o, by_g = bent * slope[..., 2 * size :], i * (1.0 - new * new)
        to_gates = torch.cat([by_i, by_f, by_o, by_g], dim=-1).unbind(0)
        to_c = (o * (1.0 - bent * bent)).unbind(0)
        to_before = (f * keep).unbind(0)
        dh = torch.zeros_like(dc)
        d_gates: list[Tensor] = []
        for t in range(len(to_c) - 1, -1, -1):
            dh = dh + d_out[t]
            dc = torch.addcmul(dc, dh, to_c[t])
            d_gate = to_gates[t] * torch.cat([dc, dc, dh, dc], dim=1)
            d_gates.append(d_gate)
            dc = dc * to_before[t]
            dh = (d_gate @ weight) * keep[t]
        d_x = torch.stack(d_gates[::-1])
        d_weight = d_x.flatten(0, 1).t() @ h.flatten(0, 1)
        return d_x, dh, dc, None, d_weight


class _GRU(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, from_x: Tensor, h: Tensor, keep: Tensor, weight: Tensor) -> Tensor:
        size, weight_t = weight.shape[1], weight.t()
        rows: list[tuple[Tensor, ...]] = []
        outputs = []
        for x, kept in zip(from_x.unbind(0), keep.unbind(0), strict=True):
            h = h * kept
            from_h = h @ weight_t
            rz = torch.sigmoid(x[:, : 2 * size] + from_h[:, : 2 * size])
            r, z = rz.chunk(2, dim=1)
            # n = tanh(x' + r h''),  h' = (1 - z) n + z h
            new = torch.tanh(torch.addcmul(x[:, 2 * size :], r, from_h[:, 2 * size :]))
            rows.append((h, rz, from_h[:, 2 * size :], new))
            h = torch.lerp(new, h, z)
            outputs.append(h)
        saved = [torch.stack(column) for column in zip(*rows, strict=True)]
        ctx.save_for_backward(*saved, keep, weight)
        return torch.stack(outputs)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (d_out,) = grads
        h, rz, from_h, new, keep, weight = ctx.saved_tensors
        r, z = rz.chunk(2, dim=-1)
        slope = rz * (1.0 - rz)
        # The gradient of h' with respect to each gate before its nonlinearity.
        size = weight.shape[1]
        by_n = (1.0 - z) * (1.0 - new * new)
        by_r = by_n * from_h * slope[..., :size]
        by_z = (h - new) * slope[..., size:]
        to_from_h = torch.stack([by_r, by_z, by_n * r], dim=2).unbind(0)  # [B, 3, H] each
        by_h, dh = z.unbind(0), torch.zeros_like(d_out[0])
        d_states: list[Tensor] = []
        for t in range(len(by_h) - 1, -1, -1):
            dh = dh + d_out[t]
            d_states.append(dh)
            d_from_h = (to_from_h[t] * dh.unsqueeze(1)).flatten(1)
            dh = torch.addmm(dh * by_h[t], d_from_h, weight) * keep[t]
        d_all = torch.stack(d_states[::-1])
        d_x = torch.cat([by_r * d_all, by_z * d_all, by_n * d_all], dim=-1)
        d_from_h_all = torch.cat([d_x[..., : 2 * size], d_x[..., 2 * size :] * r], dim=-1)
        d_weight = d_from_h_all.flatten(0, 1).t() @ h.flatten(0, 1)
        return d_x, dh, None, d_weight


def chunks_of(x: Tensor, length: int) -> Tensor:
    """Cut [T, N, ...] into [T / length * N, length, ...], by time, then by environment."""
    cut = x.unflatten(0, (-1, length))  # [chunks per environment, length, N, ...]
    return cut.transpose(1, 2).flatten(0, 1).contiguous()


def by_step(x: Tensor) -> Tensor:
    """Return [B, T, ...] as [T * B, ...]."""
    return x.transpose(0, 1).flatten(0, 1)
