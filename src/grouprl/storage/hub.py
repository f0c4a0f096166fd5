"""Pushing a folder to a hub of models as one commit, whole or not at all."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from grouprl.core.errors import InputError, RunError

if TYPE_CHECKING:
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError

REPOSITORY = re.compile(r"[\w.-]{1,96}/[\w.-]{1,96}")
STALE = ["*.safetensors", "*.safetensors.index.json", "*.bin"]
"""Weights of an earlier push, which must not stand beside new ones."""
CLIENTS = ("http", "requests", "huggingface_hub")
"""Modules whose errors are those of the hub's client, or of the clients of HTTP under it."""


def hub_access(repo: str) -> HfApi:
    """Return access to the hub that `HF_ENDPOINT` names, before anything is written.

    Raises:
        InputError: `repo` is not of the form OWNER/NAME, or no token is known. A token is never shown.
    """
    from huggingface_hub import HfApi, constants, get_token

    if not REPOSITORY.fullmatch(repo):
        raise InputError(f"'{repo}'", "a model on a hub is named OWNER/NAME", "Write both, such as me/my-model")
    if constants.HF_HUB_OFFLINE:
        raise InputError(f"pushing to {repo}", "HF_HUB_OFFLINE forbids every request", "Unset it")
    if get_token() is None:
        raise InputError(
            f"pushing to {repo}",
            "a hub asks for a token with the right to write",
            "Run `hf auth login`, or set HF_TOKEN",
        )
    return HfApi()


def push_folder(hub: HfApi, folder: Path, repo: str, message: str, *, private: bool = False) -> str:
    """Push every file of a folder in one commit, and return the address of the model.

    A repository that did not exist before is removed again if the commit fails; one that existed keeps its last commit.

    Raises:
        RunError: the hub refused or could not be reached; the folder on this machine stays as it is.
    """
    made = False
    try:
        with _in_words(hub, repo, folder):
            made = not hub.repo_exists(repo)
            if made:
                hub.create_repo(repo, private=private)
            hub.upload_folder(repo_id=repo, folder_path=folder, commit_message=message, delete_patterns=STALE)
    except BaseException:
        if made:
            _remove(hub, repo)
        raise
    return f"{hub.endpoint}/{repo}"


def _remove(hub: HfApi, repo: str) -> None:
    """Remove an empty repository of ours; the failure before it is the one to report."""
    try:
        hub.delete_repo(repo, missing_ok=True)
    except Exception:  # the hub may be gone altogether
        return


@contextmanager
def _in_words(hub: HfApi, repo: str, folder: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, RuntimeError, ValueError) as error:  # the last two: what stores weights, and answers that are none
        raise RunError(_failed(repo, folder, _reason(hub, error))) from None  # its request holds the token
    except Exception as error:  # clients of HTTP have errors of their own
        if not type(error).__module__.startswith(CLIENTS):
            raise
        raise RunError(_failed(repo, folder, _reason(hub, error))) from None


def _reason(hub: HfApi, error: BaseException) -> str:
    """Return the reason for a failure: the answer to the last request, if there was one."""
    from huggingface_hub import get_token
    from huggingface_hub.errors import HfHubHTTPError

    chain = list(_causes(error))
    for each in chain:
        if isinstance(each, HfHubHTTPError):
            return _answered(each)
    if any(isinstance(each, OSError) or type(each).__module__.startswith(CLIENTS) for each in chain):
        return f"{hub.endpoint} could not be reached ({type(error).__name__})"
    token, said = get_token(), " ".join(str(error).split())
    return f"the weights were not taken ({(said.replace(token, '…') if token else said)[-300:]})"


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__


def _answered(error: HfHubHTTPError) -> str:
    status = getattr(error.response, "status_code", None)
    known = {401: "the token is not valid", 403: "the token may not write there", 409: "it exists already"}
    said = known.get(status, "") if isinstance(status, int) else ""
    return f"the hub answered {status}" + (f": {said}" if said else "")


def _failed(repo: str, folder: Path, why: str) -> str:
    return f"nothing was pushed to {repo}: {why}. The model is in {folder}: `hf upload {repo} {folder}` pushes it later"
