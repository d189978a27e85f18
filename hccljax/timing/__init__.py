"""How long collectives take on a topology: lower bounds, closed forms, simulation."""

from hccljax.timing.bounds import Bound, lower_bound
from hccljax.timing.closed import Terms, closed_form
from hccljax.timing.rates import Rates
from hccljax.timing.simulation import Simulation, simulate
from hccljax.timing.timeline import Interval, Timeline

__all__ = ["Bound", "Interval", "Rates", "Simulation", "Terms", "Timeline", "closed_form", "lower_bound", "simulate"]
