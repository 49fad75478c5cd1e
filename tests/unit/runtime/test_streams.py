"""Random words depend only on key and counter."""

import numpy as np

from runtime.streams import Stream, random_words, torch_seed


def test_a_stream_is_a_function_of_its_key():
    words = random_words(7, Stream.AUGMENTATION, (0, 0, 5, 0), 9)
    assert words.dtype == np.uint64
    assert random_words(7, Stream.AUGMENTATION, (0, 0, 5, 0), 4).tolist() == words[:4].tolist()
    others = [
        random_words(seed, stream, (0, 0, index, 0), 9)
        for seed, stream, index in [
            (8, Stream.AUGMENTATION, 5),
            (7, Stream.NEW_TRAIN, 5),
            (7, Stream.AUGMENTATION, 6),
            (5, Stream.AUGMENTATION, 7),
        ]
    ]
    assert len({word for stream in [words, *others] for word in stream.tolist()}) == 45
    assert random_words(2**64 - 1, Stream.SUBSAMPLE, (0, 0, 2**64 - 1, 0), 1).shape == (1,)


def test_every_part_of_every_step_has_its_own_seed() -> None:
    places = [(seed, step, part) for seed in (0, 1) for step in range(50) for part in range(5)]
    seeds = [torch_seed(*place) for place in places]
    # torch's generator on a CPU uses only the lower half.
    assert len({seed % 2**32 for seed in seeds}) == len(places)
    assert [torch_seed(*place) for place in reversed(places)] == seeds[::-1]
    assert all(0 <= seed < 2**64 for seed in seeds)
