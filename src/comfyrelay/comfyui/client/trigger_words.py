"""Trigger words of a LoRA, from the metadata that training programs store in the file."""

import json
from collections import Counter
from collections.abc import Mapping
from typing import Any

from comfyrelay.text import excerpt

# A training set has thousands of tags. The most frequent tags are the most useful.
MAX_WORDS = 24
MAX_WORD_LENGTH = 200
_PHRASE, _TAGS = "modelspec.trigger_phrase", "ss_tag_frequency"
_TITLES = ("modelspec.title", "ss_output_name")


def trigger_words(metadata: Mapping[str, Any]) -> list[str]:
    """Return the trigger phrase, then the tags of the training images, most frequent first."""
    counts: Counter[str] = Counter()
    for tags in _object(metadata.get(_TAGS)).values():
        for tag, count in _object(tags).items():
            if isinstance(count, int):
                counts[tag.strip()] += count
    found = [_text(metadata.get(_PHRASE)), *(_text(tag) for tag, _count in counts.most_common(MAX_WORDS))]
    return [word for word in dict.fromkeys(found) if word][:MAX_WORDS]


def model_title(metadata: Mapping[str, Any]) -> str | None:
    """Return the name that the trainer gave to the model."""
    return next((title for key in _TITLES if (title := _text(metadata.get(key)))), None)


def _text(value: Any) -> str:
    return excerpt(value, length=MAX_WORD_LENGTH) if isinstance(value, str) else ""


def _object(value: Any) -> Mapping[str, Any]:
    """Return a JSON object that the header contains as text, or an empty one."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return {}
    return value if isinstance(value, dict) else {}
