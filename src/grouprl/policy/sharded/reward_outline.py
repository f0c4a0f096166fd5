"""A reward model without its weights, and where they are read from; see `grouprl.policy.sharded.outline`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from grouprl.policy.language.columns.score_columns import Columns
from grouprl.policy.language.load_reward import (
    HEAD,
    check_folder,
    check_head,
    described_scores,
    drawn_head,
    note_training,
    pretrained,
    rows_for_padding,
    told_of_reward_model,
    write_padding,
)
from grouprl.policy.language.template_settings import set_defaults
from grouprl.policy.language.tiny import initial_weights, tiny_config
from grouprl.policy.language.tokenizer_checks import check_vocabulary
from grouprl.policy.sharded.outline import Outline, Weights, adapted, parameters_on_meta, stored_weights
from grouprl.records.characters import PRINTABLE

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase


@dataclass(frozen=True)
class ScoreWeights:
    """Every weight of a reward model that begins: those that are stored, and those that a new head begins with.

    An embedding that has fewer rows stored gets rows of zeros.
    """

    stored: Weights
    head: Mapping[str, Tensor]
    """Empty if a head is stored."""
    embedding: str
    rows: int

    def __call__(self) -> Iterator[tuple[str, Tensor]]:
        """Yield every weight with its name."""
        for name, whole in self.stored():
            if name not in self.head:
                yield name, grown(whole, self.rows) if name == self.embedding else whole
        yield from self.head.items()


def grown(whole: Tensor, rows: int) -> Tensor:
    """Return a matrix with zeros below it, so that it has `rows` rows."""
    missing = rows - len(whole)
    return whole if missing <= 0 else torch.cat([whole, whole.new_zeros(missing, whole.shape[1])])


def reward_outline_of(
    spec: str | Path,
    dtype: torch.dtype,
    *,
    lora: Mapping[str, object] | None = None,
    seed: int = 0,
    alphabet: str = PRINTABLE,
    template_settings: Mapping[str, object] | None = None,
    columns: Columns | None = None,
    **tiny: int,
) -> Outline:
    """Return the outline of the model that `load_reward_model` loads by the same arguments, to train it.

    Raises:
        InputError: as `load_reward_model` does.
    """
    labels = 1 if columns is None else len(columns.names)
    if str(spec) == "tiny":
        config, tokenizer = tiny_config(alphabet, **tiny)
        config.num_labels = labels
        model, added = _model(config, dtype, tokenizer, "tiny")
        shapes = {name: each.shape for name, each in model.named_parameters() if not _of_head(name)}
        stored: Weights = partial(initial_weights, shapes, config, seed)
    else:
        check_folder(str(spec))
        with told_of_reward_model(str(spec)):
            config, tokenizer = described_scores(str(spec), labels), _tokenizer(str(spec))
            check_vocabulary(tokenizer, config.get_text_config().vocab_size, str(spec))
            model, added = _model(config, dtype, tokenizer, str(spec))
        stored = _stored(str(spec), model, added, dtype, seed, labels)
    check_head(model, str(spec))
    set_defaults(tokenizer, template_settings or {})
    write_padding(model.config, tokenizer)
    note_training(model.config)
    weights = _with_head(stored, model, seed)
    whole = model.eval() if lora is None else adapted(model, lora, seed, scores=True)
    if columns is not None:
        columns.write(model.config)
    return Outline(whole, tokenizer, weights, str(spec))


def _tokenizer(spec: str) -> PreTrainedTokenizerBase:
    from transformers import AutoTokenizer

    found: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(spec)
    return found


def _model(
    config: PretrainedConfig, dtype: torch.dtype, tokenizer: PreTrainedTokenizerBase, spec: str
) -> tuple[PreTrainedModel, int]:
    """Return the model without its weights, with a row for the padding token, and how many rows no file holds."""
    from transformers import AutoModelForSequenceClassification

    text = config.get_text_config()
    added = rows_for_padding(tokenizer, text.vocab_size, spec)
    text.vocab_size += added
    with parameters_on_meta():
        model: PreTrainedModel = AutoModelForSequenceClassification.from_config(config, dtype=dtype)
    model.tie_weights()
    return model, added


def _stored(spec: str, model: PreTrainedModel, added: int, dtype: torch.dtype, seed: int, labels: int) -> Weights:
    """Return what reads the weights of the trunk, and those of a head if the files hold one."""
    embedding = _embedding(model)
    wanted = {name: list(each.shape) for name, each in model.named_parameters() if not _of_head(name)}
    wanted[embedding][0] -= added
    return stored_weights(spec, wanted) or partial(_whole_first, spec, dtype, seed, labels)


def _whole_first(spec: str, dtype: torch.dtype, seed: int, labels: int) -> Iterator[tuple[str, Tensor]]:
    yield from pretrained(spec, dtype, seed, False, labels)[0].state_dict().items()


def _with_head(stored: Weights, model: PreTrainedModel, seed: int) -> ScoreWeights:
    """Return the weights with a new head beside them, unless one is stored."""
    there = {name for name, _ in stored() if _of_head(name)}
    head = {
        name: drawn_head(name.rpartition(".")[2], each.shape, seed)
        for name, each in model.named_parameters()
        if _of_head(name) and name not in there
    }
    return ScoreWeights(stored, head, _embedding(model), model.get_input_embeddings().weight.shape[0])


def _embedding(model: PreTrainedModel) -> str:
    weight = model.get_input_embeddings().weight
    return next(name for name, each in model.named_parameters() if each is weight)


def _of_head(name: str) -> bool:
    return name.partition(".")[0] == HEAD
