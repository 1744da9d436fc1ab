"""Tools: what a policy may call between two turns, and the conversation that this makes. Imports no torch."""

from covey.errors import ToolError
from covey.tools.decorator import tool
from covey.tools.environments import Environments
from covey.tools.mcp import from_mcp
from covey.tools.openenv import from_openenv
from covey.tools.python_tool import Python, PythonInterpreter
from covey.tools.search import Search
from covey.tools.tags import Tags

__all__ = [
    "Environments",
    "Python",
    "PythonInterpreter",
    "Search",
    "Tags",
    "ToolError",
    "from_mcp",
    "from_openenv",
    "tool",
]
