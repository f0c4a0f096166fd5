"""`grouprl serve`, a policy behind an endpoint that programs for OpenAI's and Anthropic's interfaces can talk to; and
`grouprl lessons`, practice of a frozen model behind such an endpoint.
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from grouprl.cli import completion
from grouprl.cli.options import (
    AsJson,
    CheckpointStep,
    EngineName,
    ModelDevice,
    RunOrModel,
    TemplateVariables,
    template_variables,
)
from grouprl.cli.results import put_data
from grouprl.core.errors import InputError
from grouprl.core.json_types import JsonObject
from grouprl.core.terminal import Terminal

if TYPE_CHECKING:
    from grouprl.chat import Access, ChatLimits
    from grouprl.policy import CausalPolicy
    from grouprl.protocols import Policy, RunSampler
    from grouprl.records.examples import Example, Split
    from grouprl.rollout.local.sampler import MakeEngine
    from grouprl.serve import Service
    from grouprl.tasks import Task

LOOPBACK = ("127.0.0.1", "localhost", "::1")
"""Addresses that only programs of this machine reach."""
UNKNOWN = {
    "refuse": "Parameters that cannot be applied, and other names of the model, are refused (--unknown-parameters "
    "ignore: left out)",
    "ignore": "Parameters that cannot be applied are left out, and any name of the model is taken",
}
"""Message at the start, by the value of --unknown-parameters."""
HostAddress = Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 is every one.")]
PortNumber = Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 is any free one.")]
ServedName = Annotated[str | None, typer.Option(help="The model's name for clients (default: the source's name).")]
MaxTokens = Annotated[int, typer.Option(min=1, help="Tokens of a completion, where a request sets no limit.")]
AtOnce = Annotated[int, typer.Option(min=1, help="Completions sampled at the same time.")]
RecordFile = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Append one line per completion: its exact tokens and log-probs.")
]
ApiKeys = Annotated[
    list[str] | None,
    typer.Option(
        metavar="KEY", envvar="GROUPRL_API_KEY", help="Serve only requests with this key; may be given again."
    ),
]
AllowedHosts = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME", help="A host name of this machine besides its addresses and localhost; can be repeated."
    ),
]
AnswerSeconds = Annotated[float, typer.Option(min=1, help="Seconds that a completion may take, waiting included.")]
BodySize = Annotated[float, typer.Option(min=0.01, help="Largest size of a request, in MB.")]
PromptChars = Annotated[
    int | None,
    typer.Option(min=1, help="Most characters of a request (default: 16 for each token that the model has room for)."),
]
KeepMinutes = Annotated[float, typer.Option(min=0, help="Minutes that rows are kept after their last use.")]
KeepSize = Annotated[float, typer.Option(min=1, help="Approximate memory for the rows of all keys together, in MB.")]
CallSyntaxName = Annotated[
    str | None,
    typer.Option(
        metavar="SYNTAX", help="The syntax of tool calls (default: that of the chat template, or of the run)."
    ),
]

HistoryRule = Annotated[
    str,
    typer.Option(
        metavar="HOW",
        help="If the chat template rewrites earlier turns: append (the row stays as it was written), split "
        "(begin a row with what the template makes of the messages) or refuse.",
    ),
]

UnknownRule = Annotated[
    str,
    typer.Option(
        metavar="HOW",
        help="Parameters that cannot be applied (penalties, unknown names), and other names of the model: refuse (by "
        "name) or ignore.",
    ),
]

AddressAsJson = Annotated[bool, typer.Option("--json", help="Say where it is served as one JSON object, for programs.")]


def serve_command(
    source: RunOrModel,
    checkpoint: CheckpointStep = None,
    host: HostAddress = "127.0.0.1",
    port: PortNumber = 8000,
    name: ServedName = None,
    max_tokens: MaxTokens = 1024,
    at_once: AtOnce = 64,
    record: RecordFile = None,
    api_key: ApiKeys = None,
    allow_host: AllowedHosts = None,
    answer_seconds: AnswerSeconds = 600.0,
    body_mb: BodySize = 4.0,
    prompt_chars: PromptChars = None,
    keep_minutes: KeepMinutes = 60.0,
    keep_mb: KeepSize = 256.0,
    tool_calls: CallSyntaxName = None,
    history: HistoryRule = "append",
    unknown_parameters: UnknownRule = "refuse",
    engine: EngineName = None,
    device: ModelDevice = "auto",
    chat_template_kwargs: TemplateVariables = None,
    as_json: AddressAsJson = False,
) -> None:
    """Serve a run's policy, or any model, to programs that speak OpenAI's or Anthropic's protocols.

    /v1/chat/completions (tools, logprobs, stop, n, seed, stream), /v1/responses,
    /v1/messages, /v1/completions (plain texts) and /v1/models.
    Each API key has rows of its own: /v1/rows gives the exact tokens sampled for
    it, with log-probs, for an hour; --record keeps them for good. Requests that
    come together are sampled together, those of different keys in turn. Without
    --api-key, a key is a name that anybody may use: set --api-key wherever
    others can reach the port.

    [bold]Examples[/]
    grouprl serve runs/addition-grpo-s0
    grouprl serve runs/addition-grpo-s0 --checkpoint 80 --record tokens.jsonl
    grouprl serve my-model --port 8001
    GROUPRL_API_KEY=secret grouprl serve my-model --host 0.0.0.0

    [bold]Then[/]
    OPENAI_BASE_URL=http://127.0.0.1:8000/v1 OPENAI_API_KEY=me python my_agent.py
    ANTHROPIC_BASE_URL=http://127.0.0.1:8000 ANTHROPIC_API_KEY=me python my_agent.py
    """
    from grouprl.chat import Access, ChatLimits
    from grouprl.cli.quiet import silence_loading_bars
    from grouprl.serve import Retention, Service

    silence_loading_bars()
    _check_options(record, unknown_parameters)
    variables = template_variables(chat_template_kwargs)
    with ExitStack() as opened:
        policy, sampler = _opened(opened, source, checkpoint, device, engine, variables)
        service = Service(
            policy,
            name or Path(source).name,
            max_tokens=max_tokens,
            at_once=at_once,
            record=record,
            prompt_chars=prompt_chars,
            keeping=Retention(60 * keep_minutes, round(keep_mb * 2**20)),
            secret_keys=bool(api_key),
            tool_calls=tool_calls or "auto",
            history=history,  # type: ignore[arg-type]  # checked by the service
            unknown=unknown_parameters,  # type: ignore[arg-type]  # checked above
            sampler=sampler,
        )
        opened.callback(service.close)
        limits = ChatLimits(body_bytes=round(body_mb * 10**6), answer_seconds=answer_seconds)
        access = Access(tuple(api_key or ()), tuple(allow_host or ()))
        _serve(opened, service, host, port, limits, access, as_json=as_json)


def _check_options(record: Path | None, unknown: str) -> None:
    """Raise InputError for a record that cannot be written, or an unknown way with unknown parameters."""
    if record is not None and not record.parent.is_dir():
        raise InputError(f"--record {record}", f"the folder {record.parent} does not exist")
    if unknown not in UNKNOWN:
        raise InputError(f"--unknown-parameters {unknown}", f"it must be {' or '.join(UNKNOWN)}")


def _opened(
    opened: ExitStack,
    source: str,
    checkpoint: int | str | None,
    device: str,
    engine: str | None,
    variables: JsonObject,
) -> tuple[CausalPolicy, RunSampler]:
    """Return the policy that is served, with the values of its template's variables, and its sampler, open."""
    from grouprl.policy.language.template_settings import set_defaults_of
    from grouprl.rollout.engines import opened_engine

    policy, make = _policy(source, checkpoint, device, engine)
    set_defaults_of(policy, variables)
    return policy, opened.enter_context(opened_engine(make, policy))


def _serve(
    opened: ExitStack,
    service: Service,
    host: str,
    port: int,
    limits: ChatLimits,
    access: Access,
    *,
    as_json: bool,
) -> None:
    """Answer requests until the process is interrupted."""
    from grouprl.chat import Endpoint

    for note in service.notes:
        Console(stderr=True).print(f"Note: {note}", highlight=False, markup=False)
    endpoint = Endpoint(service, host, port, limits, access)
    opened.callback(endpoint.close)
    guarded = bool(access.keys) or host in LOOPBACK
    _announce(service.model, endpoint.url, service.unknown, guarded=guarded, as_json=as_json)
    while True:
        time.sleep(3600)


def _announce(model: str, url: str, unknown: str, *, guarded: bool, as_json: bool) -> None:
    """Print where a model is served, and a warning if anybody else may use it."""
    if not guarded:
        Console(stderr=True).print(
            "Anybody who reaches this port may send requests: --api-key admits only those with a key"
        )
    if as_json:
        put_data({"model": model, "url": url, "unknown_parameters": unknown})
    else:
        Console().print(f"Serving {model} at {url} (Ctrl-C ends it)", highlight=False, soft_wrap=True)
        Console().print(UNKNOWN[unknown], highlight=False, soft_wrap=True)


def _policy(
    source: str, checkpoint: int | str | None, device: str, engine: str | None
) -> tuple[CausalPolicy, MakeEngine]:
    """Return the policy of a run or of a model, and the factory of its sampler.

    Raises:
        InputError: the run is not of a single language model, a checkpoint of a model is requested, or the engine is
            unknown.
    """
    from grouprl.policy import load_policy
    from grouprl.rollout.engines import LOCAL, chosen_engine, configured_engine
    from grouprl.training.export import load_trained

    if (Path(source) / "config.yaml").is_file():
        trained = load_trained(Path(source), checkpoint)
        return _language_model(trained.policy, source), configured_engine(trained.config.sampling, engine)
    if checkpoint is not None:
        raise InputError(f"{source} with --checkpoint", "only a run folder has checkpoints", "Leave it out")
    return load_policy(source, device=device), chosen_engine(engine or LOCAL, {})


def _language_model(policy: Policy, run: str) -> CausalPolicy:
    """Return the policy of a run if it is a single language model; raises InputError if not."""
    from grouprl.policy.language.models_of import language_models_of

    models = language_models_of(policy)
    if models and "" not in models:
        what, remedy = "each agent has a policy of its own", f"Serve the model of one: grouprl serve {run}/model/AGENT"
        raise InputError(f"{run}: {what}", "one policy is served", remedy)
    if not models:
        raise InputError(
            f"{run}: its policy is {type(policy).__name__}, which writes no text",
            "a language model is served",
            f"Measure it: grouprl eval {run}",
        )
    return models[""]


def lessons_command(
    task: Annotated[str, typer.Argument(metavar="TASK", help="A task.", autocompletion=completion.tasks)],
    url: Annotated[
        str, typer.Option(metavar="URL", help="Address of an OpenAI-compatible endpoint, such as http://…/v1.")
    ],
    model: Annotated[str, typer.Option(metavar="NAME", help="Name of the model there.")] = "",
    out: Annotated[Path, typer.Option(metavar="FILE", help="File of the lessons; an existing one is extended.")] = Path(
        "lessons.json"
    ),
    prompts: Annotated[int, typer.Option(min=1, metavar="N", help="Prompts to practise on.")] = 100,
    batch: Annotated[int, typer.Option(min=1, metavar="N", help="Prompts between changes of the lessons.")] = 50,
    group: Annotated[int, typer.Option(min=2, metavar="N", help="Completions per prompt.")] = 5,
    temperature: Annotated[float, typer.Option(min=0, metavar="X", help="Their sampling temperature.")] = 0.7,
    tokens: Annotated[int, typer.Option(min=1, metavar="N", help="Limit of tokens of a reply.")] = 2048,
    held_out: Annotated[
        int, typer.Option(min=0, metavar="N", help="Held-out prompts to evaluate on before and after (0: none).")
    ] = 64,
    key_env: Annotated[
        str, typer.Option(metavar="NAME", help="Environment variable that holds the API key.")
    ] = "OPENAI_API_KEY",
    as_json: AsJson = False,
) -> None:
    """Let a frozen model practise, and keep what its groups teach as text.

    Training-Free GRPO: completions of a prompt are sampled with the lessons so
    far in the prompt and scored; where some are right and some wrong, the model
    compares them and says how the lessons change. No weight changes.

    [bold]Examples[/]
    grouprl lessons countdown --url http://127.0.0.1:8000/v1
    grouprl lessons jsonl:mine.jsonl --url https://example.org/v1 --model big
    """
    from grouprl.lessons import LessonLibrary, Practice
    from grouprl.rewards.judging.judge_client import JudgeClient
    from grouprl.tasks import load_task

    found, say = load_task(task), Terminal(stderr=as_json)
    _check_turns(found, task)
    client = JudgeClient(url, model, key_env, timeout=120.0, tries=3, who="the model", limit="--tokens")
    practice = Practice(client, found.reward, group, temperature, tokens)
    library = LessonLibrary.load(out) if out.exists() else LessonLibrary()
    fresh, reports = _examples(found, "eval", held_out), []
    before = practice.solved(fresh, library) if fresh else None
    drawn = _examples(found, "train", prompts)
    for first in range(0, len(drawn), batch):
        library, report = practice.batch(drawn[first : first + batch], library)
        library.save(out)
        reports.append(report)
        say.print(
            f"{first + report.prompts} prompts: {report.share:.2f} right, {report.mixed} groups with right and wrong, "
            f"{report.proposed} proposals, {report.unanswered} without a usable reply; {len(library.lessons)} lessons"
        )
    after = practice.solved(fresh, library) if fresh else None
    if as_json:
        put_data(
            {"lessons": library.lessons, "before": before, "after": after, "batches": [vars(each) for each in reports]}
        )
        return
    say.print(*(f"\\[{name}] {text}" for name, text in library.named().items()), sep="\n")
    if fresh:
        say.print(f"held out: {before} → {after}")
    say.print(f"lessons in {out}")


def _check_turns(task: Task, name: str) -> None:
    """Raise InputError for a task of several turns."""
    from grouprl.rollout.episode_rows import environments

    if environments(task) is not None:
        raise InputError(f"the task {name} has turns", "lessons are for tasks of one completion", "See: grouprl tasks")


def _examples(task: Task, split: Split, count: int) -> list[Example]:
    """Return the first `count` prompts of a split, or all if there are fewer."""
    size = task.size(split)
    return [task.example(split, index) for index in range(count if size is None else min(count, size))]
