"""`pdecnn.push_to_hub` and `pdecnn.from_pretrained`: models in repositories of the Hugging Face Hub.

The network is used when one of these is called, and never else. `HF_ENDPOINT` names another hub.
"""

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from torch import nn

from pdecnn.condensation.card import OWNER, make_card
from pdecnn.condensation.saved import load, save
from pdecnn.models.build import Factory
from pdecnn.shared.extras import require
from pdecnn.shared.files import write_atomic
from pdecnn.shared.reading import read_bytes, read_text
from pdecnn.training.build import find_folder
from pdecnn.training.checkpoint import (
    CARD,
    CARD_MARK,
    CONFIG,
    MANIFEST,
    MAX_JSON,
    WEIGHTS,
    CheckpointError,
    find_checkpoint,
    load_checkpoint,
    read_config,
    write_files,
)

FILES = (CONFIG, WEIGHTS, MANIFEST)
_REASONS = {
    "RepositoryNotFoundError": "there is none, or it is private and needs a token (hf auth login, or token=)",
    "GatedRepoError": "its owner asks for consent on its page first, and for a token (hf auth login, or token=)",
    "RevisionNotFoundError": "it has no such revision",
}


class HubError(RuntimeError):
    """A repository that cannot be reached, read or written."""


def push_to_hub(
    model: nn.Module | str | Path,
    repository: str,
    *,
    private: bool = False,
    revision: str | None = None,
    message: str = "Upload model with pdecnn",
    token: str | None = None,
    **options: Any,
) -> str:
    """Uploads a model as a repository of the hub, which is made if it is not there; returns its address.

    Args:
        model: A model, or a folder that `save`, training or a condense job left.
        repository: `owner/name`.
        private: Whether a repository that is made is private.
        revision: Branch to upload to.
        message: The message of the commit.
        token: Of the hub; by default the one of `hf auth login`.
        options: Those of `save`, for a model.
    """
    _check_name(repository, "push_to_hub")
    hub = require("huggingface_hub", "hub")
    with TemporaryDirectory() as home:
        folder = Path(home) / "model"
        if isinstance(model, nn.Module):
            save(model, folder, name=repository, **options)
        elif options:
            raise ValueError(f"push_to_hub: {', '.join(options)} are options of save, and {model} is saved already.")
        else:
            _copy(Path(model), folder, repository)
        with _talking(repository, "push_to_hub"):
            api = hub.HfApi(token=token, library_name="pdecnn")
            api.create_repo(repository, private=private, exist_ok=True)
            api.upload_folder(
                repo_id=repository, folder_path=folder, revision=revision, commit_message=message,
                allow_patterns=[*FILES, CARD],
            )  # fmt: skip
    return f"{api.endpoint}/{repository}"


def from_pretrained(
    repository: str, *, revision: str | None = None, token: str | None = None, factory: Factory | None = None
) -> nn.Module:
    """The model of a repository of the hub, in eval mode.

    It is fetched once and kept in the hub's cache. Nothing in it is unpickled or run.

    Args:
        repository: `owner/name`; `owner/name@revision` is understood too.
        revision: Branch, tag or commit; the main branch by default.
        token: Of the hub, for private repositories; by default the one of `hf auth login`.
        factory: For a model of your own code, as in `load`.
    """
    name, _, at = repository.partition("@")
    _check_name(name, "from_pretrained")
    hub = require("huggingface_hub", "hub")
    with _talking(repository, "from_pretrained"):
        folder = hub.snapshot_download(
            name, revision=revision or at or None, token=token, allow_patterns=list(FILES), library_name="pdecnn"
        )
    _check_ours(Path(folder), name)
    return load(folder, factory)


def _check_name(repository: str, where: str) -> None:
    parts = repository.split("/")
    if len(parts) != 2 or not all(parts):
        raise ValueError(
            f"{where}: expected a repository as 'owner/name', got {repository!r}. Folders are for pdecnn.load and save."
        )


def _check_ours(folder: Path, repository: str) -> None:
    for name in (CONFIG, WEIGHTS):
        if not (folder / name).is_file():
            raise HubError(f"from_pretrained: {repository} has no {name}, so it is no model of pdecnn.")
    try:
        read_config(folder)
    except CheckpointError as error:
        raise HubError(
            f"from_pretrained: {repository} was not saved by pdecnn. If timm saved it: "
            f"timm.create_model('hf-hub:{repository}', pretrained=True). ({error})"
        ) from error


def _copy(source: Path, folder: Path, repository: str) -> None:
    """The files of a checkpoint that others need, with a card: the one that is there, or a new one."""
    home = find_folder(source)
    if home is None:
        raise CheckpointError(
            f"push_to_hub: no {CONFIG} in {source}; expected a checkpoint, a run or a condense folder."
        )
    home = find_checkpoint(home)
    write_files(folder, {name: read_bytes(home / name, 2**40) for name in (CONFIG, WEIGHTS)})
    if (home / CARD).is_file():
        card = read_text(home / CARD, MAX_JSON)
        if CARD_MARK in card:
            card = re.sub(rf'{OWNER}/[^"\s]+', repository, card)
    else:
        found = load_checkpoint(home)
        card = make_card(found.model, found.config, repository)
    write_atomic(folder / CARD, card)


@contextmanager
def _talking(repository: str, where: str) -> Iterator[None]:
    """Makes one sentence of what a hub says."""
    log = logging.getLogger("huggingface_hub")  # it tells of every retry
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    except Exception as error:  # the hub's errors have no common kind
        kind = type(error).__name__
        reason = _REASONS.get(kind) or str(error).strip().partition("\n")[0].rstrip(".") or kind
        raise HubError(f"{where}: the hub does not give or take {repository}: {reason}.") from error
    finally:
        log.setLevel(level)
