"""The counted operations equal a count by hand."""

import torch

from models.config import DataFacts
from models.hrm.config import HRMConfig
from models.operations import _Counter, act_step_flop, train_step_flop
from training.config.composition import load_config
from training.config.schema import TrainConfig

SUDOKU = DataFacts(vocab_size=11, seq_len=81, num_puzzle_identifiers=1)


def published_pass() -> int:
    """Count 2 FLOP for each multiply-add of one pass of 4 layers over 82 positions."""
    qkv, out, gate_up, down = 512 * 1536, 512 * 512, 512 * 3072, 1536 * 512
    return 4 * (qkv + out + gate_up + down) * 2 * 82


def test_published_steps_are_counted_as_by_hand() -> None:
    # 4 passes without gradients, 2 with (three times each), 6 for the target of q_continue; the
    # heads once with gradients, and Q once without.
    heads, q = 3 * 2 * (81 * 512 * 11 + 512 * 2), 2 * 512 * 2
    full = train_step_flop(HRMConfig(), SUDOKU)
    assert full == 16 * published_pass() + heads + q
    assert round(full / 1e9, 1) == 35.8
    assert act_step_flop(HRMConfig(), SUDOKU) == 6 * published_pass()
    without = HRMConfig(no_ACT_continue=True)
    assert train_step_flop(without, SUDOKU) == 10 * published_pass() + heads
    sparse = HRMConfig.model_validate({"techniques": {"sparse_look_ahead": {"every": 8}}})
    assert full - train_step_flop(sparse, SUDOKU) == (6 * published_pass() + q) * 7 // 8


def test_mixer_and_auxiliary_heads_are_counted_as_by_hand() -> None:
    arch = load_config(TrainConfig, "cfg_pretrain", ["arch=mixer"]).arch
    # Both over the cells and over the features: gate and up, 2 x 256 wide, then down.
    layer = 2 * (128 * (81 * 512 + 256 * 81) + 81 * (128 * 512 + 256 * 128))
    heads = 2 * (81 * 128 * 11 + 128 * 2)
    # One cycle of 5 passes, all with gradients.
    plain = train_step_flop(arch, SUDOKU)
    assert plain == 3 * 5 * layer + 3 * heads
    assert act_step_flop(arch, SUDOKU) == 5 * layer
    arch = load_config(TrainConfig, "cfg_pretrain", ["arch=mixer", "heads=sage"]).arch
    facts = DataFacts(11, 81, 1, fields={"actions": (5, 0), "pixels": (256, 3)})
    # Confidence, moves and pixels in each cell; halt in place of Q.
    more = 3 * 2 * 81 * 128 * (1 + 5 + 256 * 3)
    assert train_step_flop(arch, facts) - plain == more


def test_convolutions_are_counted_as_by_hand() -> None:
    x, weight = torch.zeros(2, 3, 5, 5, device="meta"), torch.zeros(4, 3, 3, 3, device="meta")
    x.requires_grad_()
    weight.requires_grad_()

    def forward_and_backward(*_: object) -> None:
        torch.nn.functional.conv2d(x, weight, padding=1).sum().backward()

    # Two images of 25 cells with 9 neighbours; backward for the input and the weights.
    by_hand = 2 * 2 * 25 * 9 * 3 * 4
    assert _Counter(HRMConfig(), SUDOKU).count(forward_and_backward) == 3 * by_hand
