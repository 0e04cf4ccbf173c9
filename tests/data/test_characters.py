import numpy as np

from labkit.data import characters


def test_the_text_is_ascii_and_its_parts_are_large_and_differ():
    text = characters.load_characters()
    for part in (text.train, text.held_out):
        assert part.dtype == np.uint8
        assert part.max() < 128  # ASCII
        assert "The" in characters.to_text(part)
    assert len(text.train) > 100_000
    assert 10_000 < len(text.held_out) < len(text.train) / 5
    assert f"{len(text.train):,}" in text.source
    assert f"{len(text.held_out):,}" in text.source


def test_no_topic_is_in_both_parts():
    from pydoc_data.topics import topics

    text = characters.load_characters()
    train, held_out = (characters.to_text(part) for part in (text.train, text.held_out))
    whole = [characters.to_text(characters.to_tokens(topic)) for topic in topics.values()]
    assert sum(map(len, whole)) == len(train) + len(held_out)
    assert all((topic in train) != (topic in held_out) for topic in whole if len(topic) > 1000)


def test_tokens_are_the_codes_of_characters():
    np.testing.assert_array_equal(characters.to_tokens("Aa\n~"), [65, 97, 10, 126])
    assert characters.to_text(characters.to_tokens("for x in y:\n")) == "for x in y:\n"
    assert characters.to_text(characters.to_tokens("“é”")) == "???"
    assert characters.to_text([72, 105]) == "Hi"
