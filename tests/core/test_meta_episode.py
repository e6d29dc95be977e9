"""The meta-episode: budgets, endings, exact tokens. Each test plays the machine by hand; the last part plays at random."""

from __future__ import annotations

from mrsearch.core.protocol import Prompts
from mrsearch.core.types import Passage, Question

PROMPTS = Prompts(
    question="Q: {question}\n",
    reflection="Again.\n",
    explore="Elsewhere.\n",
    continuation="Next.\n",
    invalid="\nNeither.\n",
    last_call="\nLast call.\n",
    no_passages="None.",
    passage="{text}",
    passage_untitled="{text}",
)
QUESTION = Question("1", "Where?", ("Paris",))
FOUND = (Passage("7", "", "a b"),)

# What things cost in tokens of the plain codec, where a tag is `<` `/` `search` `>`:
OPENING = 9  # message, Q, :, space, Where, ?, line break, reply are eight: see the first test
SEARCH = 8  # <search>w</search>: three, one, four
ANSWER = 8
OBSERVATION = 15  # two line breaks and the tag are five; line break, a, space, b four; the closing part seven: 16
BETWEEN = 6  # end, message, Again, ., line break, reply

SEARCH_TEXT = "<search>where</search>"
PARIS = "<answer>Paris</answer>"
ROME = "<answer>Rome</answer>"
