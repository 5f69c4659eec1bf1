"""The bottleneck written down as naively as it goes, to compare with: every pass is whole, nothing is remembered.

Nothing is taken from ``captum_iba``; where that simplifies or guards, this follows the equations as they are printed.
"""

import contextlib
import hashlib
import math

import torch
from torch.nn import functional as F


def feature_in(value):
    """The tensor that is noised in what a layer returns, and the same structure with another in its place."""
    if isinstance(value, torch.Tensor):
        return value, lambda new: new
    if isinstance(value, tuple):
        place = next(i for i, one in enumerate(value) if isinstance(one, torch.Tensor) and one.is_floating_point())
        return value[place], lambda new: (*value[:place], new, *value[place + 1 :])
    name = next(n for n in ("hidden_states", "last_hidden_state", *value) if isinstance(value.get(n), torch.Tensor))
    return value[name], lambda new: type(value)({**value, name: new})


@contextlib.contextmanager
def replaced(layer, call, other):
    """While inside, ``layer`` returns in its call number ``call`` what ``other`` makes of its feature."""
    own, original, calls = "forward" in vars(layer), layer.forward, []

    def forward(*args, **kwargs):
        output = original(*args, **kwargs)
        calls.append(1)
        if len(calls) - 1 != call:
            return output
        feature, rebuilt = feature_in(output)
        return rebuilt(other(feature))

    layer.forward = forward
    try:
        yield calls
    finally:
        if own:
            layer.forward = original
        else:
            del layer.forward


def recorded(forward, layer, inputs, call):
    """The feature, and the number of the call counted from the first."""
    with replaced(layer, None, None) as calls:
        forward(*inputs)
    call, found = call % len(calls), []
    with replaced(layer, call, lambda feature: found.append(feature.detach().clone()) or feature):
        forward(*inputs)
    return found[0], call


def aligned(mask, feature):
    """True where there is a bottleneck, of the feature's shape; the mask has the first dimensions."""
    if mask is None:
        return torch.ones_like(feature, dtype=torch.bool)
    return mask.bool().reshape(*mask.shape, *[1] * (feature.ndim - mask.ndim)).expand_as(feature)


def statistics(forward, layer, inputs, mask=None, layer_call=-1, feature_dim=-1):
    """Mean and standard deviation of every feature over examples and positions, rounded to float32 as documented."""
    feature, _ = recorded(forward, layer, inputs, layer_call)
    rows = feature.movedim(feature_dim, -1)[aligned(mask, feature).movedim(feature_dim, -1)]
    rows = rows.reshape(-1, feature.shape[feature_dim]).double()
    return rows.mean(0).float(), rows.std(0, correction=0).clamp_min(0.01).float()


def noise(shape, seed, step, draw):
    """Blocks of 64 positions from a generator of its own; the 0 is the number of the layer."""
    digest = hashlib.blake2b(f"{seed},0,{step},{draw}".encode(), digest_size=8).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest, "big") >> 1)
    blocks = [torch.randn(64, *shape[1:], generator=generator) for _ in range(math.ceil(shape[0] / 64))]
    return torch.cat(blocks)[: shape[0]]


def bits(
    forward, layer, inputs, target, mean, std, *, bottleneck_mask=None, granularity="token", beta=10.0, n_steps=16,
    n_samples=0, complement=1.0, learning_rate=1.0, momentum=0.5, tail_average=0.5, antithetic=True, alternate=True,
    seed=0, layer_call=-1, feature_dim=-1,
):  # fmt: skip
    """Bits of every element of the layer's feature, with cross-entropy of the logits as loss."""
    x, call = recorded(forward, layer, inputs, layer_call)
    dim, target = feature_dim % x.ndim, torch.tensor(target)
    wide = [-1 if d == dim else 1 for d in range(x.ndim)]
    m, s = mean.to(x).reshape(wide), std.to(x).reshape(wide)
    carries = aligned(bottleneck_mask, x)
    kept = {"token": set(range(x.ndim)) - {dim}, "channel": {0, dim}, "feature": set(range(x.ndim))}[granularity]
    if x.ndim == 2:
        kept = {0, 1}
    a = torch.full([n if d in kept else 1 for d, n in enumerate(x.shape)], 5.0, dtype=x.dtype, requires_grad=True)
    adam = torch.optim.Adam([a], lr=learning_rate, betas=(momentum, 0.999))

    # The noise of an example begins at its first position with a bottleneck.
    noise_positions = torch.arange(x.movedim(dim, -1).shape[1]).repeat(len(x), 1)
    if x.ndim == 3:
        for row, has in enumerate(carries.any(dim)):
            noise_positions[row] -= has.tolist().index(True) if has.any() else 0
    noise_positions = noise_positions.clamp_min(0)

    def nats():
        # KL(N(lambda x + (1 - lambda) m, (1 - lambda)^2 s^2) || N(m, s^2)), element by element.
        lam, standardised = torch.sigmoid(a), (x - m) / s
        variance, shift = (1 - lam) ** 2, lam * standardised
        each = (variance + shift**2 - 1) / 2 - F.logsigmoid(-a)
        return torch.where(carries, each, 0.0)

    def loss(step, draw, held_back):
        epsilon = m
        if n_samples:
            number = step * n_samples + draw
            turned = antithetic and number % 2 == 1
            drawn = noise(x.movedim(dim, -1).shape[1:], seed, *divmod(number - turned, n_samples))
            drawn = torch.stack([drawn[positions].movedim(-1, dim - 1) for positions in noise_positions])
            epsilon = m + s * (-drawn if turned else drawn)
        openness = torch.sigmoid(-a if held_back else a)
        openness = torch.where(carries, openness, 1.0)
        with replaced(layer, call, lambda live: openness * x + (1 - openness) * epsilon):
            logits = forward(*inputs)
        if not held_back:
            return F.cross_entropy(logits, target, reduction="sum")
        others = logits.masked_fill(F.one_hot(target, logits.shape[1]).bool(), -math.inf)
        return (logits.logsumexp(1) - others.logsumexp(1)).sum()  # -log(1 - p)

    path = [a.detach().clone()]
    for step in range(n_steps):
        sides = {False: 1.0, True: complement} if complement else {False: 1.0}
        if complement and alternate:
            sides = {step % 2 == 1: 2 * sides[step % 2 == 1]}
        draws = max(1, n_samples)
        drawn_in = step // 2 if complement and alternate else step
        total = sum(w * loss(drawn_in, draw, side) / draws for side, w in sides.items() for draw in range(draws))
        mean_nats = nats().flatten(1).sum(1) / carries.flatten(1).sum(1).clamp_min(1)
        (a.grad,) = torch.autograd.grad(total + beta * mean_nats.sum(), a)
        adam.step()
        path.append(a.detach().clone())
    with torch.no_grad():
        a.copy_(torch.stack(path[-max(1, round(tail_average * n_steps)) :]).mean(0))
    return nats().detach().clamp_min(0) / math.log(2)
