"""What JAX has no public form of: permutes that survive vmap, calls that know their transpose, replication types."""
