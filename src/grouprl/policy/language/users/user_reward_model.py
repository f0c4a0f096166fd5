"""A reward model whose score depends on who judges, as a few judgements before the prompt tell (VPL)."""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from grouprl.core.outputs import DRAWN_SCORE, SCORE, USER_KL
from grouprl.core.spans import spanned
from grouprl.policy.language.reward_model import RewardModel
from grouprl.policy.language.users.layers import UserLayers, kl_from_prior
from grouprl.policy.language.users.reading import Judgement, Reader
from grouprl.policy.passes import AUTO, PassSettings
from grouprl.records.tokens import Tokens

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

LAYERS_FILE = "user_layers.safetensors"
OWN = "users."
"""Beginning of the names of the layers' parameters."""


class UserRewardModel(RewardModel):
    """A reward model of several users (VPL, arXiv:2408.10075): judgements of the user stand before each prompt.

    Its outputs are `score`, for the mean of the belief about the user, `drawn_score`, for a user drawn from it, and
    `user_kl`, the belief's KL from the prior. A prompt without judgements has the prior. The order of judgements does
    not matter, and an output depends on its row and the weights alone: noise is drawn from a hash of the judgements and
    of the bias of the log-variances, which moves with every step of training.

    Args:
        model: the trunk, of which the layer `score` is not used.
        tokenizer: its tokenizer, with a token for each separator of judgements.
        layers: the layers behind the trunk.
        noise: the share of the belief's spread with which `drawn_score` draws a user.
        engine, passes, token_budget, precision: those of `RewardModel`.

    Raises:
        InputError: the tokenizer has no tokens for the separators.
    """

    outputs = (SCORE, DRAWN_SCORE, USER_KL)

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        layers: UserLayers,
        noise: float = 1.0,
        *,
        engine: str = "auto",
        passes: PassSettings = AUTO,
        token_budget: int | None = None,
        precision: str = "float32",
    ) -> None:
        super().__init__(model, tokenizer, engine=engine, passes=passes, token_budget=token_budget, precision=precision)
        self.noise = noise
        self.layers = layers.to(device=self.device, dtype=self.dtype)
        self._reader = Reader.of(tokenizer)

    @spanned("forward")
    def _run(self, tokens: Tokens, names: Sequence[str]) -> dict[str, Tensor]:
        rows = [self._reader.cut(ids) for ids in tokens.prompt_ids]
        contexts = list(dict.fromkeys(judgements for judgements, _ in rows))
        number = {judgements: user for user, judgements in enumerate(contexts)}
        user_b = torch.tensor([number[judgements] for judgements, _ in rows], device=self.device)
        state_bh, mean_uz, log_variance_uz = self._read(tokens, [own for _, own in rows], contexts)
        found: dict[str, Tensor] = {}
        if SCORE in names:
            found[SCORE] = self.layers.scores(state_bh, mean_uz[user_b])
        if DRAWN_SCORE in names:
            noise_uz = torch.stack([self._noise(each) for each in contexts]).to(mean_uz)
            drawn_uz = mean_uz + self.noise * (log_variance_uz / 2).exp() * noise_uz
            found[DRAWN_SCORE] = self.layers.scores(state_bh, drawn_uz[user_b])
        if USER_KL in names:
            found[USER_KL] = kl_from_prior(mean_uz, log_variance_uz)[user_b]
        return {name: x.to(self.score_dtype) for name, x in found.items()}

    def _read(
        self, tokens: Tokens, prompts: Sequence[tuple[int, ...]], contexts: Sequence[tuple[Judgement, ...]]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return ([B,H] states of the rows, [U,Z] means, [U,Z] log-variances of their users), in one pass."""
        judged = [(user, each) for user, context in enumerate(contexts) for each in context]
        end = self.eos_ids[:1]
        asked = [*prompts, *(prompt for _, (prompt, _, _) in judged for _ in range(2))]
        said = [*tokens.response_ids, *((*ids, *end) for _, (_, *both) in judged for ids in both)]
        state_nh = self._states(Tokens(tuple(asked), tuple(said)))
        state_bh, pair_n2h = state_nh[: len(prompts)], state_nh[len(prompts) :].unflatten(0, (len(judged), 2))
        user_n = torch.tensor([user for user, _ in judged], dtype=torch.long, device=self.device)
        return state_bh, *self.layers.belief(pair_n2h[:, 0], pair_n2h[:, 1], user_n, len(contexts))

    def _noise(self, context: tuple[Judgement, ...]) -> Tensor:
        """Return standard normal numbers [Z] that follow from the judgements, in any order, and the weights."""
        bias_z = self.layers.log_variance.bias.detach().to("cpu", torch.float64)
        seed = hashlib.sha256(json.dumps(sorted(context)).encode() + bias_z.numpy().tobytes()).digest()[:8]
        drawn_z = np.random.default_rng(int.from_bytes(seed, "little")).standard_normal(len(bias_z))
        return torch.from_numpy(drawn_z)

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Yield the trunk's trainable parameters with their names, then those of the layers as users.name."""
        unused = {id(parameter) for parameter in self.head.parameters()}
        yield from ((name, p) for name, p in super().named_parameters() if id(p) not in unused)
        yield from ((f"{OWN}{name}", p) for name, p in self.layers.named_parameters() if p.requires_grad)

    def save(self, folder: str | Path) -> None:
        """Write the trunk as a folder for `AutoModel`, the layers as `user_layers.safetensors`, and the tokenizer."""
        from safetensors.torch import save_file

        self.model.base_model.save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)
        state = {name: x.detach().cpu().contiguous() for name, x in self.layers.state_dict().items()}
        save_file(state, Path(folder) / LAYERS_FILE)

    def copied(self, *, trainable: bool = True) -> UserRewardModel:
        """Return a copy of the model as it is now; only the tokenizer is shared. `trainable` as in `CausalPolicy`."""
        model, layers = copy.deepcopy(self.model), copy.deepcopy(self.layers)
        if not trainable:
            model.requires_grad_(False)
            layers.requires_grad_(False)
        return UserRewardModel(
            model,
            self.tokenizer,
            layers,
            self.noise,
            engine=self.engine,
            passes=self.pass_settings,
            token_budget=self.token_budget,
            precision=self.precision,
        )


def has_user_layers(folder: str | Path) -> bool:
    """Return whether a folder holds a reward model of users."""
    return (Path(folder).expanduser() / LAYERS_FILE).is_file()


def stored_layers(folder: str | Path) -> UserLayers:
    """Return the layers that `UserRewardModel.save` wrote; their sizes are those of the weights."""
    from safetensors.torch import load_file

    state = load_file(Path(folder).expanduser() / LAYERS_FILE)
    latent, hidden = len(state["mean.bias"]), len(state["judged.0.bias"])
    layers = UserLayers(state["judged.0.weight"].shape[1] // 2, latent, hidden)
    layers.load_state_dict(state)
    return layers
