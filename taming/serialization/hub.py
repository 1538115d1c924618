"""Model directories on the Hugging Face hub."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from taming.runtime.errors import UserError

__all__ = ["HUB_PREFIX", "download", "upload"]

log = logging.getLogger("taming")

HUB_PREFIX = "hf:"


def download(name: str) -> Path:
    """Fetches the model directory of `"owner/name"`, or of a revision of it: `"owner/name@commit"`.

    A commit is one model for ever; without a revision, or with a branch or tag, it is the latest.

    Raises:
        UserError: if it cannot be fetched, and was not before.
    """
    from huggingface_hub import snapshot_download

    repo, _, revision = name.partition("@")
    with _explaining(f"{HUB_PREFIX}{name} could not be fetched from"):
        path = Path(
            snapshot_download(
                repo, revision=revision or None, allow_patterns=["*.json", "*.safetensors"]
            )
        )
    log.info("%s%s@%s", HUB_PREFIX, repo, path.name)
    return path


def upload(
    directory: Path, repo: str, *, private: bool | None = None, message: str, token: str | None
) -> str:
    """Uploads a directory in one commit; see `PretrainedModel.push_to_hub`."""
    from huggingface_hub import HfApi, get_token

    if (token or get_token()) is None:
        raise UserError(
            f"nothing was uploaded to {repo}: there is no token of the Hugging Face hub here. Log "
            "in with `hf auth login`, or set HF_TOKEN to a token that may write."
        )
    with _explaining(f"{directory.name} could not be uploaded to {repo} on"):
        api = HfApi(token=token)
        repo = api.create_repo(repo, private=private, exist_ok=True).repo_id
        commit = api.upload_folder(repo_id=repo, folder_path=directory, commit_message=message)
    return f"{HUB_PREFIX}{repo}@{commit.oid}"


@contextmanager
def _explaining(failure: str) -> Iterator[None]:
    """Says in one sentence what went wrong with the hub."""
    from huggingface_hub import constants
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        yield
    except Exception as error:  # of an HTTP library that changes with the hub's
        why = str(error).strip().split("\n")[0].rstrip(".")
        advice = "Check the name, and that the token may do this."
        unreachable = ("Connect", "Timeout", "Network", "Proxy")
        if isinstance(error, LocalEntryNotFoundError) or any(
            word in kind.__name__ for kind in type(error).__mro__ for word in unreachable
        ):
            why = f"{constants.ENDPOINT} cannot be reached"
            advice = "Check the network; a model directory copied by hand is given by its path."
        raise UserError(f"{failure} the Hugging Face hub: {why}. {advice}") from error
