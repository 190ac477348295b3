"""The long description of the package: README.md with absolute links, for package indexes."""

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

BRANCH = "main"


class Readme(MetadataHookInterface):
    """Set the field `readme`."""

    def update(self, metadata: dict[str, Any]) -> None:
        text = Path(self.root, "README.md").read_text(encoding="utf-8")
        text = absolute_links(text, metadata["urls"]["Repository"])
        metadata["readme"] = {"content-type": "text/markdown", "text": text}


def absolute_links(text: str, repository: str) -> str:
    """Return Markdown whose relative links and images point into a repository."""

    def absolute(link: re.Match[str]) -> str:
        image, label, path = link.groups()
        return f"{image}[{label}]({repository}/{'raw' if image else 'blob'}/{BRANCH}/{path})"

    return re.sub(r"(!?)\[([^\]]*)\]\((?!https?:|#)([^)\s]+)\)", absolute, text)
