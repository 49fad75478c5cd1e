"""From logits to answers: greedy, temperature, top-k, top-p and beam decoding over the cells.

Given the logits the cells are independent. A constraint (`evaluation.constraints`) ties them
together: they are decided one by one, always the one whose best token is the most probable among
those still allowed to it; each decision narrows the choice of the cells that follow. That search
solves puzzles by itself: compare with the same search on meaningless logits.

Probabilities are those of softmax. For a model trained with stablemax, pass
`stablemax_log_probs(logits)`: softmax leaves normalized log-probabilities as they are.
"""

import math
from collections.abc import Callable
from typing import NamedTuple, TypedDict, Unpack

import torch
from torch import Generator, Tensor

from evaluation.constraints import UNDECIDED, Constraint, State

# The log-probability of a token that the logits exclude, where a constraint leaves no other.
_FLOOR = -1e30

_Pick = Callable[[Tensor], Tensor]
"""Chooses among scores [..., V], -inf where a token may not be taken; returns int64 [...]."""


class Ties(TypedDict, total=False):
    """What ties the cells together."""

    inputs: Tensor | None  # integer [B, S], the puzzles; needed with a constraint
    constraint: Constraint | None


class Decoded(NamedTuple):
    """One answer for each row.

    Attributes:
        tokens: int64 [B, S].
        log_probs: float32 (float64 for such logits) [B], the sums of `cell_log_probs`.
        cell_log_probs: [B, S], nats: each cell's token, those that the puzzle fixes too, under the
            softmax of the logits over the whole vocabulary, before any temperature, cut or
            constraint. -inf where a constraint chose a token that the logits exclude.
        feasible: bool [B], whether the constraint is kept; always without one. Where it is not,
            cells with no token left hold their most probable one that an open cell can hold.
    """

    tokens: Tensor
    log_probs: Tensor
    cell_log_probs: Tensor
    feasible: Tensor


def decode_greedy(logits: Tensor, **ties: Unpack[Ties]) -> Decoded:
    """Take the most probable token of each cell; of equal ones the first.

    Args:
        logits: any float dtype [B, S, V], computed in float32 (float64 stays); -inf excludes a
            token.
    Raises:
        ValueError: shapes do not fit, a logit is NaN or +inf, a cell has no finite logit, or the
            inputs are no puzzles of the constraint; says where and what is accepted.
    """
    return _decode(logits, ties, lambda scores: scores.argmax(-1))


def decode_sampled(
    logits: Tensor,
    temperature: float,
    generator: Generator,
    *,
    top_k: int | None = None,
    top_p: float | None = None,
    **ties: Unpack[Ties],
) -> Decoded:
    """Draw each cell's token from softmax(logits / temperature).

    Drawn is the largest of score - log(exponential noise) (the Gumbel-max trick), which takes the
    same noise whatever is cut. The draws of a row depend on the rows before it in the batch.

    Args:
        temperature: above 0; towards 0 the draws become those of `decode_greedy`.
        generator: source of the draws, on any device.
        top_k: draw among so many most probable (allowed) tokens of each cell; from V on nothing is
            cut, and of equal tokens the first are kept.
        top_p: above 0, at most 1, which cuts nothing: draw among the fewest most probable (allowed)
            tokens whose probabilities, after the temperature, add up to it (arXiv:1904.09751).
    Raises:
        ValueError: as for `decode_greedy`; also a number that is out of range.
    """
    if top_k is not None and top_k < 1:
        raise ValueError(f"top_k is {top_k}; accepted: 1 or more")
    if top_p is not None and not 0 < top_p <= 1:
        raise ValueError(f"top_p is {top_p}; accepted: above 0, at most 1")
    if not 0 < temperature < math.inf:
        raise ValueError(f"temperature is {temperature}; accepted: above 0 and finite")

    def pick(scores: Tensor) -> Tensor:
        # The smallest normal number: a subnormal one could be flushed to 0, and 0 / 0 is NaN.
        divisor = max(temperature, torch.finfo(scores.dtype).tiny)
        tempered = (scores - scores.amax(-1, keepdim=True)) / divisor
        if top_k is not None:
            ranks = torch.arange(scores.shape[-1], device=scores.device)
            tempered = _keep(tempered, ranks < top_k)
        if top_p is not None and top_p < 1:  # Rounded sums could reach 1 before the last token.
            probs = tempered.sort(dim=-1, descending=True, stable=True).values.softmax(-1)
            tempered = _keep(tempered, probs.cumsum(-1) - probs < top_p)
        noise = torch.empty(scores.shape, dtype=scores.dtype, device=generator.device)
        noise.exponential_(generator=generator).clamp_min_(torch.finfo(noise.dtype).tiny)
        return (tempered - noise.to(scores.device).log()).argmax(-1)

    return _decode(logits, ties, pick)


def decode_beam(logits: Tensor, width: int, **ties: Unpack[Ties]) -> Decoded:
    """Search for the most probable answer with the `width` >= 1 best partial answers of each row.

    Partial answers have different cells decided. To be comparable, an open cell counts as if it
    could still have the best of its tokens: the score of a partial answer is an upper bound of the
    log-probability of its completions. Those known to have none give way to those that may have
    one. Width 1 is `decode_greedy`; so is every width without a constraint, where greedy is exact.
    A wider beam usually finds more, but no width promises it.

    Raises:
        ValueError: as for `decode_greedy`; also a width below 1.
    """
    if width < 1:
        raise ValueError(f"beam_width is {width}; accepted: 1 or more")
    constraint = ties.get("constraint")
    if constraint is None:
        return decode_greedy(logits)
    search = _Search(_cell_logits(logits), ties.get("inputs"), constraint)
    state, owners = search.state, search.owners
    while True:
        rows, cells, gains = search.next_decisions(state, owners)
        if len(rows) == 0:
            break
        parents, cells, tokens, gains = _all_steps(rows, cells, gains, len(owners))
        totals = search.totals(state, owners)[parents] + gains
        is_dead = ~constraint.is_feasible(state)[parents]
        ranking = _ranking(gains.neg(), totals.neg(), is_dead, owners[parents])
        kept = ranking[_is_among_first(owners[parents[ranking]], width)]
        parents, cells, tokens = parents[kept], cells[kept], tokens[kept]
        owners = owners[parents]
        moving = (cells != UNDECIDED).nonzero().squeeze(-1)
        state = search.place(_select(state, parents), moving, cells[moving], tokens[moving])
    ranking = _ranking(search.totals(state, owners).neg(), ~constraint.is_feasible(state), owners)
    return search.finish(_select(state, ranking[_is_among_first(owners[ranking], 1)]))


def answer_confidence(logits: Tensor, q_halt_logits: Tensor, q_continue_logits: Tensor) -> Tensor:
    """Rate answers by (1 - mean over the cells of entropy / log V) * sigmoid(q_halt - q_continue):
    how sure the tokens are, times how sure Q is that the answer is right.

    Args:
        logits: float [B, S, V], as for the decoders; V at least 2.
        q_halt_logits, q_continue_logits: float [B]; zeros for a q_continue that is not learnt.
    Returns:
        float32 (float64 for such logits) [B], 0 to 1.
    Raises:
        ValueError: shapes do not fit, or logits as for the decoders.
    """
    probs = _cell_logits(logits).softmax(-1)
    batch_size, _, vocab_size = probs.shape
    if vocab_size < 2:
        raise ValueError("logits of a single token; accepted: 2 or more")
    for name, q in (("q_halt_logits", q_halt_logits), ("q_continue_logits", q_continue_logits)):
        if q.shape != (batch_size,):
            raise ValueError(f"{name} of shape {list(q.shape)}; accepted: [{batch_size}]")
    entropy = torch.special.entr(probs).sum(-1).mean(-1)
    certainty = (1 - entropy / math.log(vocab_size)).clamp(0, 1)
    return certainty * (q_halt_logits.to(probs) - q_continue_logits.to(probs)).sigmoid()


def _cell_logits(logits: Tensor) -> Tensor:
    """Return logits [B, S, V] in float32 (float64 stays); ValueError as for `decode_greedy`."""
    if logits.ndim != 3 or 0 in logits.shape[1:]:
        raise ValueError(f"logits of shape {list(logits.shape)}; accepted: [batch, cells, tokens]")
    if not logits.is_floating_point():
        raise ValueError(f"logits of dtype {logits.dtype}; accepted: floating point")
    wide = logits if logits.dtype == torch.float64 else logits.float()
    largest = wide.amax(-1)  # NaN where the row has one.
    if not largest.isfinite().all():
        where = (~largest.isfinite()).nonzero()[0].tolist()
        value = float(largest[tuple(where)])
        found = "no token that is not excluded by -inf" if value == -math.inf else f"a {value}"
        raise ValueError(f"logits at {where} have {found}; accepted: finite, or -inf for some")
    return wide


def _keep(scores: Tensor, is_kept: Tensor) -> Tensor:
    """Exclude tokens by their rank: bool [..., V] or [V], the most probable first."""
    ranking = scores.argsort(dim=-1, descending=True, stable=True)
    keeps = torch.empty_like(ranking, dtype=torch.bool)
    keeps.scatter_(-1, ranking, is_kept.expand_as(ranking))
    return scores.masked_fill(~keeps, -math.inf)


def _decode(logits: Tensor, ties: Ties, pick: _Pick) -> Decoded:
    logits = _cell_logits(logits)
    constraint = ties.get("constraint")
    if constraint is None:
        tokens = pick(logits)
        return _decoded(logits, tokens, torch.ones_like(tokens[:, 0], dtype=torch.bool))
    search = _Search(logits, ties.get("inputs"), constraint)
    state = search.state
    while True:
        rows, cells, gains = search.next_decisions(state, search.owners)
        if len(rows) == 0:
            return search.finish(state)
        state = search.place(state, rows, cells, pick(gains))


def _decoded(logits: Tensor, tokens: Tensor, is_feasible: Tensor) -> Decoded:
    of_cells = logits.log_softmax(-1).gather(-1, tokens.unsqueeze(-1)).squeeze(-1)
    return Decoded(tokens, of_cells.sum(-1), of_cells, is_feasible)


class _Search:
    """Partial answers under a constraint: N rows, each of the puzzle that `owners` [N] names.

    Attributes:
        state, owners: the puzzles themselves, one row each.
    """

    def __init__(self, logits: Tensor, inputs: Tensor | None, constraint: Constraint) -> None:
        batch_size, num_cells, vocab_size = logits.shape
        if inputs is None:
            raise ValueError("a constraint needs the inputs: the puzzles to be answered")
        if inputs.shape != (batch_size, num_cells) or inputs.is_floating_point():
            found = f"inputs of shape {list(inputs.shape)} and dtype {inputs.dtype}"
            accepted = f"with these logits: integers [{batch_size}, {num_cells}]"
            raise ValueError(f"{found}; accepted {accepted}")
        self._constraint = constraint
        self._logits = logits
        choices = constraint.choices(num_cells, vocab_size).to(logits.device)
        self.state = constraint.start(inputs.to(logits.device), vocab_size)
        self.owners = torch.arange(batch_size, device=logits.device)
        differences = logits.double() - logits.double().amax(-1, keepdim=True)
        floored = differences.clamp_min(_FLOOR)
        best = floored.masked_fill(~choices, -math.inf).max(-1, keepdim=True)
        self._best_choice = best.indices.squeeze(-1)
        # What a token loses against the best choice of its cell; float64 [B, S, V].
        is_open = self.state["tokens"] == UNDECIDED
        self._gains = torch.where(is_open.unsqueeze(-1), floored - best.values, 0.0)

    def next_decisions(self, state: State, owners: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Choose the next cell of each row that has one.

        Returns:
            rows, ascending, and their cells, int64 [n]; gains of the tokens, float64 [n, V], -inf
            for those that are not allowed.
        """
        allowed = state["allowed"]

        def gains_at(rows: Tensor, cells: Tensor) -> Tensor:
            gains = self._gains[owners[rows], cells]
            return gains.masked_fill(~allowed[rows, cells], -math.inf)

        is_option = allowed.any(-1)
        gains = gains_at(*is_option.nonzero(as_tuple=True))
        confidence = torch.full_like(is_option, -1.0, dtype=gains.dtype)
        confidence[is_option] = (gains.amax(-1) - gains.logsumexp(-1)).exp()
        rows = is_option.any(-1).nonzero().squeeze(-1)
        cells = confidence[rows].argmax(-1)
        return rows, cells, gains_at(rows, cells)

    def place(self, state: State, rows: Tensor, cells: Tensor, tokens: Tensor) -> State:
        """Decide a cell in some of the rows."""
        placed = self._constraint.place(_select(state, rows), cells, tokens)
        return {name: state[name].index_copy(0, rows, placed[name]) for name in state}

    def totals(self, state: State, owners: Tensor) -> Tensor:
        """Sum the gains of the cells decided, float64 [N]."""
        tokens = state["tokens"]
        cells = torch.arange(tokens.shape[1], device=tokens.device)
        gains = self._gains[owners.unsqueeze(1), cells, tokens.clamp_min(0)]
        return torch.where(tokens == UNDECIDED, 0.0, gains).sum(-1)

    def finish(self, state: State) -> Decoded:
        """Fill what is still open in a state with one row for each puzzle."""
        tokens = torch.where(state["tokens"] == UNDECIDED, self._best_choice, state["tokens"])
        return _decoded(self._logits, tokens, self._constraint.is_feasible(state))


def _all_steps(
    rows: Tensor, cells: Tensor, gains: Tensor, num_rows: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """List all tokens for the next cell of `rows`, and the other rows, which have none, once.

    Returns:
        parents (rows), cells (UNDECIDED leaves the row as it is), tokens; float64 gains; each [C].
    """
    place, tokens = (gains > -math.inf).nonzero(as_tuple=True)
    is_idle = torch.ones(num_rows, dtype=torch.bool, device=rows.device)
    is_idle[rows] = False
    idle = is_idle.nonzero().squeeze(-1)
    none = torch.full_like(idle, UNDECIDED)
    gained = torch.cat([gains[place, tokens], torch.zeros_like(idle, dtype=gains.dtype)])
    parents, cells = torch.cat([rows[place], idle]), torch.cat([cells[place], none])
    return parents, cells, torch.cat([tokens, none]), gained


def _select(state: State, rows: Tensor) -> State:
    return {name: value[rows] for name, value in state.items()}


def _ranking(*keys: Tensor) -> Tensor:
    """Order by the last key, rows equal in it by the one before, and so on: int64 [N]."""
    order = torch.arange(len(keys[0]), device=keys[0].device)
    for key in keys:
        order = order[key[order].argsort(stable=True)]
    return order


def _is_among_first(groups: Tensor, count: int) -> Tensor:
    """Mark the first `count` of each group in ascending group numbers, bool [N]."""
    begins = torch.searchsorted(groups, groups)
    return torch.arange(len(groups), device=groups.device) - begins < count
