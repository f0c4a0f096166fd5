"""What each method's paper claims, as something that a toy run can show or not show."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Setup = str | Mapping[str, Any]


@dataclass(frozen=True)
class Claim:
    """`measure` of `method` is higher (sign +1), lower (-1) or no worse (0) than that of `rival` in the arena.

    Without a rival the method is compared with itself before training.
    """

    method: Setup
    arena: str
    measure: str
    sign: int
    words: str
    rival: Setup = "grpo"

    @property
    def name(self) -> str:
        """The method's catalogue name."""
        return self.method if isinstance(self.method, str) else str(self.method["name"])


PASS, DISTINCT, ENTROPY, SHORT = "eval/pass@1", "distinct_right", "train/entropy", "length_right"
ROWS, DEAD = "whole/rows_trained", "whole/groups_zero_variance"

LEARNS = "learns from rewards alone"
BASE = (
    Claim("reinforce", "plain", PASS, 1, LEARNS, rival=""),
    Claim("sft", "plain", PASS, 0, "imitating its own completions, good or bad, does not lose what is there", rival=""),
    Claim("grpo", "plain", PASS, 1, "the group as a baseline beats none", rival="reinforce"),
    Claim("rloo", "plain", PASS, 1, "leave-one-out baseline beats none", rival="reinforce"),
    Claim("remax", "plain", PASS, 1, "the greedy completion as a baseline beats none", rival="reinforce"),
    Claim("opo", "plain", PASS, 1, "the length-weighted baseline beats none", rival="reinforce"),
    Claim("gpg", "plain", PASS, 0, "plain policy gradient is as good as GRPO"),
    Claim("ppo", "plain", PASS, 1, "clip and critic beat plain policy gradient", rival="reinforce"),
    Claim("reinforce_pp", "plain", PASS, 0, "without groups as good as GRPO"),
    Claim("reinforce_pp_baseline", "plain", PASS, 0, "batch whitening as good as group normalisation"),
    Claim("raft", "many completions", ENTROPY, -1, "learning from correct completions alone loses entropy faster"),
    Claim("raft_pp", "plain", PASS, 0, "rejection sampling with a clip comes close to GRPO"),
    Claim("reinforce_rej", "mixed difficulty", PASS, 1, "leaving dead prompts out beats RAFT++", rival="raft_pp"),
    Claim("dr_grpo", "plain", PASS, 0, "without its biases as good as GRPO"),
    Claim("lite_ppo", "plain", PASS, 0, "two tricks suffice"),
    Claim("bnpo", "plain", PASS, 0, "Beta normalisation as good as the standard deviation"),
    Claim("vc_ppo", "plain", PASS, 1, "decoupled GAE and a pre-trained critic beat PPO", rival="ppo"),
    Claim("vapo", "plain", PASS, 1, "length-adaptive GAE and the positive term beat PPO", rival="ppo"),
    Claim("dapo_direct", "plain", PASS, 1, LEARNS, rival=""),
    Claim("turn_ppo", "stale", PASS, 1, "a ratio per turn is steadier than one per token", rival="ppo"),
    Claim("st_ppo", "stale", PASS, 1, "smaller steps where the clip leaves much out are steadier", rival="ppo"),
    Claim("ppo_max", "stale", PASS, 1, "scaled rewards with the KL among them are steadier", rival="ppo"),
    Claim("otb", "plain", PASS, 1, "a baseline for each position beats one for the whole completion"),
    Claim("maxrl", "plain", PASS, 0, "rewards over their mean as good as over their spread"),
    Claim("mdpo", "plain", PASS, 1, "mirror descent learns without a clip", rival="reinforce"),
    Claim("trpo", "plain", PASS, 1, "a natural gradient step under a KL bound learns", rival=""),
)
STALE = "stays whole on data that are far off-policy"
OFF_POLICY = tuple(
    Claim(name, "stale", PASS, 1, STALE)
    for name in (
        *("dapo", "cispo", "dispo", "scalerl", "minirl", "gspo", "gspo_token", "gmpo", "sapo", "cpgd", "bapo", "llds"),
        *("stable_reinforce", "gvpo", "rebel", "opmd", "opmd_kimi", "copg", "rec", "red_drop", "red_weight", "asymre"),
        *("intellect2", "p3o", "reg_grpo", "a_star_po", "apa", "nft", "pacs", "disco", "capo"),
    )
)
COLLAPSE = "keeps entropy that GRPO loses"
ENTROPIES = tuple(
    Claim(name, "many completions", ENTROPY, 1, COLLAPSE)
    for name in ("clip_cov", "kl_cov", "egsw", "hapo", "dcpo_clip", "forking_tokens")
)
DIVERSITY = (
    Claim("unlikeliness", "many completions", DISTINCT, 1, "rare correct completions are not lost"),
    Claim("gtpo_trajectory", "plain", PASS, 0, "protecting shared tokens does not cost learning"),
    Claim("passk", "many completions", DISTINCT, 1, "crediting the best of a group alone keeps more ways to be right"),
)
LENGTH = tuple(
    Claim(name, "verbose", SHORT, -1, "correct completions become shorter")
    for name in ("conciser", "self_rewarded_efficiency", "open_rs", "grpo_lead")
)
TOKENS_ONLY = (
    Claim("advantage_reweighting", "plain", PASS, 1, "damping unlikely tokens speeds learning up"),
    Claim("lopti", "plain", PASS, 1, "unlikely tokens first, then the others, speeds learning up"),
    Claim("ar_lopti", "plain", PASS, 1, "both remedies together speed learning up"),
    Claim("ktae", "plain", PASS, 1, "crediting the tokens of correct completions speeds learning up"),
    Claim("t_spmo", "plain", PASS, 0, "branching tokens alone suffice"),
    Claim({"name": "s_grpo_memory", "head": 2, "keep": 0.4}, "plain", PASS, 0, "a sample of the tokens suffices"),
    Claim("apo_asymmetric", "plain", PASS, 0, "asymmetric KL and length terms do not cost learning"),
)
PRUNED = (
    Claim("cppo", "plain", ROWS, -1, "half of the completions need not be trained on"),
    Claim("pods", "plain", ROWS, -1, "the most varied completions suffice"),
    Claim("d3s", "plain", ROWS, -1, "the most varied completions and tokens suffice"),
    Claim("cppo", "plain", PASS, 0, "and that does not cost learning"),
    Claim("pods", "plain", PASS, 0, "and that does not cost learning"),
    Claim("d3s", "plain", PASS, 0, "and that does not cost learning"),
)
OUT_OF_REACH = "help on prompts that no completion solves"
GUIDED = (
    *(Claim(n, "beyond reach", PASS, 1, OUT_OF_REACH) for n in ("ghpo", "scaf_grpo", "temp_samp", "hpt", "xrpo")),
    Claim("otr", "beyond reach", PASS, 1, "demonstrations teach what no completion of one's own shows"),
)
FEWER_DEAD = "fewer groups without a gradient"
CHOSEN = (
    *(Claim(n, "mixed difficulty", DEAD, -1, FEWER_DEAD) for n in ("vas", "vade", "srpo_history", "dots")),
    Claim("online_difficulty", "mixed difficulty", ROWS, 1, "more rows carry a gradient"),
    Claim("knapsack_rl", "mixed difficulty", ROWS, 1, "more rows carry a gradient"),
    Claim({"name": "dump", "by": "level"}, "mixed difficulty", DEAD, -1, FEWER_DEAD),
    Claim(
        "gvm_raft",
        "mixed difficulty",
        PASS,
        1,
        "completions where the gradient varies beat equally many each",
        "raft_pp",
    ),
    Claim("self", "mixed difficulty", PASS, 1, "leaving solved prompts alone helps the others"),
    Claim("skywork_r1v2", "mixed difficulty", ROWS, 1, "stored completions keep more rows effective"),
    Claim("copo", "mixed difficulty", ROWS, 1, "zero-variance groups are compared with the batch"),
    *(Claim(n, "mixed difficulty", PASS, 1, "and learns more from as many steps") for n in ("vade", "dots", "copo")),
)
THOUGHT = (
    Claim("palu", "verbose", SHORT, -1, "correct completions become shorter"),
    Claim("ada_grpo", "verbose", SHORT, -1, "rare short forms survive"),
    Claim("degrpo", "verbose", SHORT, -1, "the short form is chosen where it suffices"),
    Claim("parallel_r1", "verbose", PASS, 0, "the alternating bonus does not cost learning"),
    Claim("hbpo", "budgets", SHORT, -1, "budgets shorten thoughts"),
    Claim("brpo", "budgets", SHORT, -1, "credit for every budget shortens thoughts"),
    Claim("pta_grpo", "budgets", PASS, 1, "crediting a plan by the completions behind it speeds learning up"),
    Claim({"name": "hicra", "phrases": ["|"]}, "budgets", PASS, 1, "credit on planning tokens speeds learning up"),
    Claim("funrl", "budgets", PASS, 0, "paying uncertain thoughts does not cost learning"),
    Claim("pppo", "budgets", PASS, 0, "the beginnings of completions suffice"),
)
MORE_ENTROPY = (
    *(Claim(n, "many completions", ENTROPY, 1, COLLAPSE) for n in ("dcpo_distribution", "aepo", "thr")),
    Claim("dph_rl", "many completions", DISTINCT, 1, "a mass-covering divergence keeps the base model's completions"),
    Claim("seed_grpo", "plain", PASS, 0, "smaller steps on uncertain prompts do not cost learning"),
    Claim("intuitor", "plain", PASS, 1, "self-certainty alone teaches", rival=""),
    Claim("nthr", "plain", PASS, 1, "sparing tokens that correct completions share speeds learning up"),
    Claim("d_ppo", "stale", PASS, 1, STALE),
    Claim("dppo", "stale", PASS, 1, "tokens left out by how far their probability moved beat the clip"),
    Claim("vespo", "stale", PASS, 1, "a weight that fades on both sides of 1 beats the clip"),
    Claim("luspo", "plain", PASS, 0, "losses times their lengths do not cost learning", rival="gspo"),
    Claim("remix", "stale", PASS, 1, STALE),
    Claim("grpo_d", "plain", PASS, 0, "a KL weight that grows does not cost learning"),
    Claim("rl_v", "plain", PASS, 0, "learning to verify besides does not cost learning"),
    Claim({"name": "rl_v", "verify_coef": 0.01}, "plain", PASS, 0, "nor with a hundredth of the weight"),
    Claim("eis_grpo", "variants", PASS, 0, "one group over equivalent prompts does not cost learning"),
    Claim("share_grpo", "variants", PASS, 1, "completions shared among variants teach more"),
    Claim("dvpo", "plain", PASS, 1, "a value model learnt before, without rewards in training, teaches", rival=""),
    Claim("rto", "plain", PASS, 1, "dense rewards of a preference model beat PPO's single one", rival="ppo"),
)
CLAIMS: tuple[Claim, ...] = (
    *(*BASE, *OFF_POLICY, *ENTROPIES, *DIVERSITY, *LENGTH, *TOKENS_ONLY, *PRUNED),
    *(*GUIDED, *CHOSEN, *THOUGHT, *MORE_ENTROPY),
)
TURNS = "gives credit to turns, of which a single completion has one; docs/credit.md compares it"
OF_TURNS = (
    *("mt_grpo", "gigpo", "arpo_replay", "spear", "arpo_branch", "scaling_inter", "igpo", "salt"),
    *("empg", "ui_s1", "rank_grpo", "g_ra", "otc", "ufo", "spa_rl", "multi_turn_ppo", "promed", "thor", "dmpo"),
    *("sdpo_segment", "duration_aware"),
)
TEAMS = "is for several agents; docs/teams.md and docs/adapters.md tell of runs"
OF_TEAMS = ("m_grpo", "hrpo", "ssp", "cpmobius", "rae")
PLANNED = "is for turns or for a planner and an actor; docs/agents.md tells of runs"
REVIEWED = "reads what is said between turns, of which a single completion has one; docs/reviews.md tells of runs"
WORDS = "needs a labeller of good and poor parts of a completion; docs/credit.md has one"
AHEAD = "is for completions sampled ahead of training: see docs/async.md"
NOT_RUN = {
    **dict.fromkeys(OF_TURNS, TURNS),
    **dict.fromkeys(OF_TEAMS, TEAMS),
    **dict.fromkeys(("archer", "hi_agent"), PLANNED),
    **dict.fromkeys(("decoupled_ppo", "m2po", "dppo_mask"), AHEAD),
    "minillm": "learns from a teacher; docs/policies.md tells of runs",
    "step_grpo": "needs a reward that knows the steps of a completion: see the recipe r1_vl",
    "text2grad": WORDS,
    **dict.fromkeys(("r3l", "echo", "search_r2", "retroformer"), REVIEWED),
}
