"""Random words: each stream a function of its key."""

import numpy as np

from runtime.streams import Stream, random_words


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
