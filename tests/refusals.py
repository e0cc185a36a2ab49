"How a wrong call is refused: in a sentence that says what to do."

import pytest


def error_message(call, kind=(TypeError, ValueError)) -> str:
    "The sentence with which a call is refused: one line, not too long, and with some advice."
    with pytest.raises(kind) as error:
        call()
    words = str(error.value)
    assert '\n' not in words, words
    assert len(words) < 400, words
    assert ': ' in words, words
    return words
