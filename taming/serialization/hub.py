"""Downloads and uploads model directories on the Hugging Face hub."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from taming.runtime.errors import UserError

__all__ = ["HUB_PREFIX", "download", "upload"]

log = logging.getLogger("taming")

HUB_PREFIX = "hf:"


def download(name: str) -> Path:
    """Downloads the model directory of `"owner/name"` or `"owner/name@revision"`.

    A revision is a commit, a branch or a tag. Only a commit always names the same model.

    Raises:
        UserError: if the hub cannot be reached and the model is not in the local cache.
    """
    from huggingface_hub import snapshot_download

    repo, _, revision = name.partition("@")
    with _explain_hub_errors(f"{HUB_PREFIX}{name} could not be downloaded from"):
        patterns = ["*.json", "*.safetensors"]
        path = Path(snapshot_download(repo, revision=revision or None, allow_patterns=patterns))
    log.info("%s%s@%s", HUB_PREFIX, repo, path.name)
    return path


def upload(
    directory: Path, repo: str, *, private: bool | None = None, message: str, token: str | None
) -> str:
    """Uploads a directory as one commit; see `PretrainedModel.push_to_hub`."""
    from huggingface_hub import HfApi, get_token

    if (token or get_token()) is None:
        raise UserError(
            f"nothing was uploaded to {repo} because no Hugging Face token was found. Log in with "
            "`hf auth login`, or set HF_TOKEN to a token with write access."
        )
    with _explain_hub_errors(f"{directory.name} could not be uploaded to {repo} on"):
        api = HfApi(token=token)
        repo = api.create_repo(repo, private=private, exist_ok=True).repo_id
        commit = api.upload_folder(repo_id=repo, folder_path=directory, commit_message=message)
    return f"{HUB_PREFIX}{repo}@{commit.oid}"


@contextmanager
def _explain_hub_errors(failure: str) -> Iterator[None]:
    """Turns any error of the hub's client into a one-line `UserError`."""
    from huggingface_hub import constants
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        yield
    except Exception as error:  # the client's HTTP library differs between its versions
        reason = str(error).strip().split("\n")[0].rstrip(".")
        advice = "Check the name, and that your token has access."
        connection_errors = ("Connect", "Timeout", "Network", "Proxy")
        if isinstance(error, LocalEntryNotFoundError) or any(
            word in kind.__name__ for kind in type(error).__mro__ for word in connection_errors
        ):
            reason = f"{constants.ENDPOINT} cannot be reached"
            advice = "Check the network, or give the path of a local model directory."
        raise UserError(f"{failure} the Hugging Face hub: {reason}. {advice}") from error
