"""Loading a reward model: a trunk with a new head, or a folder that holds a head already."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import nn

from grouprl.core.errors import InputError
from grouprl.policy.language.columns.score_columns import REGRESSION, Columns, columns_of
from grouprl.policy.language.columns.several_scores import AttributeModel, GeneralPreferenceModel
from grouprl.policy.language.hub import check_on_hub
from grouprl.policy.language.load import FAILURES, resolve_device, resolve_dtype, said_of
from grouprl.policy.language.model_checks import check_config, check_files, check_missing, check_present
from grouprl.policy.language.reward_model import RewardModel, read_to_end_of_turn
from grouprl.policy.language.template_settings import set_defaults
from grouprl.policy.language.tiny import build_tiny
from grouprl.policy.language.tokenizer_checks import check_finite, check_tokenizer_files, check_vocabulary
from grouprl.policy.language.users.layers import UserLayers, UserSizes
from grouprl.policy.language.users.user_reward_model import UserRewardModel, has_user_layers, stored_layers
from grouprl.policy.lora import add_lora, base_model
from grouprl.policy.passes import AUTO, PassSettings
from grouprl.records.characters import PRINTABLE

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

HEAD = "score"
"""The name of the head's layer in the classes of transformers."""
PADDING = "<|padding|>"
"""The padding token that a tokenizer without one of its own gets."""


def load_reward_model(
    spec: str | Path,
    *,
    device: str = "auto",
    dtype: str = "auto",
    precision: str = "float32",
    engine: str = "auto",
    passes: PassSettings = AUTO,
    token_budget: int | None = None,
    alphabet: str = PRINTABLE,
    seed: int = 0,
    trained: bool = False,
    lora: Mapping[str, object] | None = None,
    template_settings: Mapping[str, object] | None = None,
    users: UserSizes | None = None,
    columns: Columns | None = None,
    **tiny: int,
) -> RewardModel:
    """Load the reward model named by `spec`; most arguments are those of `load_policy`.

    A trunk gets a new head, drawn from `seed` with standard deviation 1/(hidden + 1). With `trained` the folder must
    hold a head. With `lora` the head and adapters are trained. With `users` it is a `UserRewardModel`, whose
    layers are those of the folder if it holds any; a `trained` folder that does is one, too. With `columns` the layer
    has an output for each: an `AttributeModel`, or a `GeneralPreferenceModel` if they have a temperature; a `trained`
    folder says itself what it is.

    Raises:
        InputError: a folder that is not a model, an architecture for which transformers has no class with a linear
            `score`, a head with another number of labels, a tokenizer that does not fit, or adapters with `users`.
        MissingExtra: adapters without the extra `lora`.
    """
    place = resolve_device(device)
    kind = resolve_dtype(dtype, place, precision, pretrained=str(spec) != "tiny")
    of_users = (trained or users is not None) and has_user_layers(spec)
    if lora is not None and (users is not None or of_users):
        raise InputError(
            "model.lora for a reward model of users",
            "its layers and its trunk are trained whole",
            "Set model.lora: null",
        )
    labels = 1 if columns is None else len(columns.names)
    if str(spec) == "tiny":
        model, tokenizer = _tiny(alphabet, seed, kind, labels, **tiny)
    else:
        if tiny:
            raise InputError(f"{sorted(tiny)} given for {spec}", "sizes can be set for the tiny model only")
        model, tokenizer = pretrained(str(spec), kind, seed, trained and not of_users, labels)
    check_head(model, str(spec))
    set_defaults(tokenizer, template_settings or {})
    if trained:
        _check_padding(model, tokenizer, str(spec))
    else:
        _fit_padding(model, tokenizer, str(spec))
        note_training(model.config)
    model = model if lora is None else add_lora(model, lora, seed, scores=True)
    if columns is not None:
        columns.write(base_model(model).config)
    made = class_of(base_model(model).config)
    if users is not None or of_users:
        made = partial(UserRewardModel, layers=_layers(spec, model, users, seed, of_users), noise=_noise(users))
    return made(
        model.to(place), tokenizer, engine=engine, passes=passes, token_budget=token_budget, precision=precision
    )


def class_of(config: PretrainedConfig) -> Callable[..., RewardModel]:
    """Return the class of a reward model by what the outputs of its layer are."""
    columns = columns_of(config)
    if columns is None:
        return RewardModel
    return AttributeModel if columns.tau is None else GeneralPreferenceModel


def _layers(spec: str | Path, model: PreTrainedModel, users: UserSizes | None, seed: int, stored: bool) -> UserLayers:
    """Return the layers of users in the folder, or new ones."""
    if stored or users is None:
        return stored_layers(spec)
    return UserLayers(model.config.get_text_config().hidden_size, users.latent, users.hidden, seed)


def _noise(users: UserSizes | None) -> float:
    """Return the share of the belief's spread that training draws; all of it for a model that is only read."""
    return 1.0 if users is None else users.noise


def _tiny(
    alphabet: str, seed: int, dtype: torch.dtype, labels: int, **sizes: int
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    from transformers import LlamaForSequenceClassification

    trunk, tokenizer = build_tiny(alphabet, seed=seed, **sizes)
    trunk.config.num_labels = labels
    with torch.random.fork_rng(devices=[]):
        model = LlamaForSequenceClassification(trunk.config)
    model.model.load_state_dict(trunk.model.state_dict())
    _draw_head(model, seed)
    return model.to(dtype), tokenizer


def note_training(config: PretrainedConfig) -> None:
    """Write into a model's configuration that its outputs are trained as numbers and read where the last turn ends."""
    read_to_end_of_turn(config)
    config.problem_type = REGRESSION


def check_folder(spec: str) -> None:
    """Check that a reward model can be loaded from a folder, or from the Hub, without reading its weights.

    Raises:
        InputError: there is none, or its files are not whole.
    """
    folder = Path(spec).expanduser()
    if not folder.is_dir():
        check_on_hub(spec)
    elif (folder / "adapter_config.json").is_file() and not (folder / "config.json").is_file():
        raise InputError(
            f"{folder} holds adapters of peft alone",
            "a reward model is read whole: trunk, adapters and head",
            "Load it with peft's AutoPeftModelForSequenceClassification and num_labels=1, and save merge_and_unload() "
            "and the tokenizer",
        )
    elif not (folder / "config.json").is_file():
        raise InputError(f"{folder} has no config.json", "a model folder needs config.json, weights and a tokenizer")
    else:
        check_tokenizer_files(folder)
        check_files(folder)
        check_present(folder)


@contextmanager
def told_of_reward_model(spec: str) -> Iterator[None]:
    """Turn errors of transformers about a reward model's files into an InputError."""
    try:
        yield
    except InputError:
        raise
    except FAILURES as error:
        raise InputError(f"The reward model {spec} could not be loaded: {said_of(error)}") from error


def described_scores(spec: str, labels: int, trained: bool = False) -> PretrainedConfig:
    """Return the configuration of a model with `labels` scores, or with as many as a `trained` one states itself.

    Raises:
        InputError: there is none, or it cannot be a reward model.
    """
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(spec)
    _check_reads_forward(config, spec)
    _check_class(config, spec)
    stored = columns_of(config) if trained else None
    labels = labels if stored is None else len(stored.names)
    check_labels(config, spec, labels)
    return AutoConfig.from_pretrained(spec, num_labels=labels)


def pretrained(
    spec: str, dtype: torch.dtype, seed: int, trained: bool, labels: int
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Load a reward model with all its weights, and its tokenizer; see `load_reward_model`."""
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    check_folder(spec)
    with told_of_reward_model(spec):
        config = described_scores(spec, labels, trained)
        tokenizer = AutoTokenizer.from_pretrained(spec)
        with torch.random.fork_rng(devices=[]):
            model, told = AutoModelForSequenceClassification.from_pretrained(
                spec, num_labels=config.num_labels, dtype=dtype, output_loading_info=True
            )
        missing = sorted(told["missing_keys"])
        if trained:
            _check_trained(config, missing, spec)
        check_missing([name for name in missing if trained or name.partition(".")[0] != HEAD], spec)
        if missing:
            _draw_head(model, seed)
        check_finite(model, spec)
        check_vocabulary(tokenizer, model.get_input_embeddings().weight.shape[0], spec)
    return model, tokenizer


@torch.no_grad()
def _draw_head(model: PreTrainedModel, seed: int) -> None:
    for name, weight in model.score.named_parameters():
        weight.copy_(drawn_head(name, weight.shape, seed))


def drawn_head(name: str, shape: torch.Size, seed: int) -> torch.Tensor:
    """Return what a new head begins with: its weight is drawn, its bias is 0."""
    if name == "bias":
        return torch.zeros(shape)
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)) / (shape[1] + 1)


def _check_class(config: PretrainedConfig, spec: str) -> None:
    from transformers.models.auto.modeling_auto import MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES

    if config.model_type not in MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES:
        raise InputError(
            f"{spec} is of type {config.model_type}",
            "a reward model is saved as a model for sequence classification, and transformers has no such class for it",
            "Take a Llama, Qwen, Mistral, GPT-2 … model",
        )


def _check_reads_forward(config: PretrainedConfig, spec: str) -> None:
    """Refuse encoders in words that are about scores; `check_config` speaks of log-probs."""
    try:
        check_config(config, spec)
    except InputError:
        raise InputError(
            f"{spec} is of type {config.model_type}, an encoder",
            "each of its tokens attends to later ones, and its score is not read at the last one",
            "Take a Llama, Qwen, Mistral, GPT-2 … model, or call this one in a reward function of your own "
            "(reward.function)",
        ) from None


def _check_trained(config: PretrainedConfig, missing: Sequence[str], spec: str) -> None:
    """Refuse a language model where a trained reward model is asked for."""
    absent = [name for name in missing if name.partition(".")[0] == HEAD]
    if absent and not _scores(config):
        raise InputError(
            f"{spec} holds a language model: its weights lack {', '.join(absent)}",
            f"a reward model has a layer '{HEAD}' that was trained",
            "Name the folder of a reward model; one is trained by `grouprl train reward_model`",
        )


def _scores(config: PretrainedConfig) -> bool:
    return any(str(name).endswith("ForSequenceClassification") for name in config.architectures or ())


def check_labels(config: PretrainedConfig, spec: str, labels: int = 1) -> None:
    """Check that a head, if there is one, gives as many scores as are asked for.

    Raises:
        InputError: it has another number of labels.
    """
    if _scores(config) and config.num_labels != labels:
        raise InputError(
            f"{spec} has a head with {config.num_labels} label{'s' * (config.num_labels != 1)}",
            "a reward model gives one score" if labels == 1 else f"this one gives {labels} numbers",
            f"Take a folder with num_labels={labels}, or a language model to train; a classifier pays through a reward "
            "function of your own (reward.function)",
        )


def check_head(model: PreTrainedModel, spec: str) -> None:
    """Check that a score comes from one linear layer.

    Raises:
        InputError: it does not.
    """
    head = getattr(model, HEAD, None)
    if type(head) is not nn.Linear:
        raise InputError(
            f"{spec} is a {type(model).__name__}",
            f"its score does not come from one linear layer '{HEAD}' on the last token's state",
            "Take a Llama, Qwen, Mistral, GPT-2 … model",
        )


def _check_padding(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, spec: str) -> None:
    """Refuse a trained model whose scores transformers would read at padding, and one without an end token."""
    pad, of_texts = model.config.get_text_config().pad_token_id, tokenizer.pad_token_id
    if pad is not None and of_texts is not None and pad != of_texts:
        raise InputError(
            f"The reward model {spec} has the padding token {pad}, and its tokenizer {of_texts}",
            "transformers reads the score at the last token that is not the model's padding token",
            "Give config.json and the tokenizer the same pad_token, the one that it was trained with",
        )
    if tokenizer.eos_token_id is None:
        raise InputError(
            f"The reward model {spec} has no end token",
            "a completion is scored with the end token after it",
            "Set eos_token in tokenizer_config.json",
        )


def _fit_padding(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, spec: str) -> None:
    """Give model and tokenizer one padding token that ends no text: transformers reads the score before it.

    A padding token that the model has already is kept. A new one gets an unused row of the embedding, or one of zeros.
    """
    if added := rows_for_padding(tokenizer, model.get_input_embeddings().weight.shape[0], spec):
        _add_rows(model, added)
    write_padding(model.config, tokenizer)


def rows_for_padding(tokenizer: PreTrainedTokenizerBase, rows: int, spec: str) -> int:
    """Give a tokenizer a padding token that ends no text; return how many rows an embedding of `rows` lacks for it.

    Raises:
        InputError: it has no end token.
    """
    if tokenizer.eos_token_id is None:
        raise InputError(
            f"The tokenizer of {spec} has no end-of-sequence token",
            "a score is read at the end token of a completion",
            "Set eos_token in tokenizer_config.json",
        )
    if tokenizer.pad_token_id in (None, tokenizer.eos_token_id) or tokenizer.pad_token_id >= rows:
        tokenizer.add_special_tokens({"pad_token": PADDING})
    tokenizer.padding_side = "right"
    return max(0, int(tokenizer.pad_token_id) + 1 - rows)


def write_padding(config: PretrainedConfig, tokenizer: PreTrainedTokenizerBase) -> None:
    """Write the tokens that pad and end a text into a model's configuration."""
    for each in (config, config.get_text_config()):
        each.pad_token_id, each.eos_token_id = tokenizer.pad_token_id, tokenizer.eos_token_id


@torch.no_grad()
def _add_rows(model: PreTrainedModel, count: int) -> None:
    """Add rows of zeros to the embedding; no random number is drawn."""
    rows = model.get_input_embeddings().weight.shape[0]
    with torch.random.fork_rng(devices=[]):
        model.resize_token_embeddings(rows + count, mean_resizing=False)
    model.get_input_embeddings().weight[rows:] = 0
