"""The notebook of docs/ runs from top to bottom, with its steps made few."""

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

NOTEBOOK = Path(__file__).parents[1] / "docs" / "start.ipynb"


@pytest.mark.slow
def test_notebook_leads_from_a_folder_to_samples(tmp_path: Path) -> None:
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    (parameters,) = (
        cell for cell in notebook.cells if "parameters" in cell.metadata.get("tags", [])
    )
    parameters.source += "\nvqgan_steps = transformer_steps = 2"
    client = NotebookClient(notebook, resources={"metadata": {"path": str(tmp_path)}})
    client.execute()
    assert (tmp_path / "outputs" / "notebook" / "generator" / "config.json").is_file()
    pictures = [
        output
        for cell in notebook.cells
        for output in cell.get("outputs", [])
        if "image/png" in output.get("data", {})
    ]
    assert len(pictures) == 3  # reconstructions, samples, completions
