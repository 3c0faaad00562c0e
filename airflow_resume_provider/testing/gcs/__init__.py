"""A Cloud Storage server on loopback: JSON and XML API, honest preconditions and checksums, file-backed."""

from .faults import Fault, FaultPlan, Rule
from .hooks import Hooks
from .server import GcsServer
from .store import RootInUse, Store

__all__ = ["Fault", "FaultPlan", "GcsServer", "Hooks", "RootInUse", "Rule", "Store"]
