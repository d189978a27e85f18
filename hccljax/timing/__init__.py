"""How long collectives take on a topology: lower bounds, closed forms, simulation."""
