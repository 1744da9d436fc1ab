"""What a run will need, before it runs: memory by phase from the model's config, time from a rehearsal of some seconds.

sizes       a recipe's model → how many weights, how wide; no weight is loaded
lengths     a recipe's data → tokens per prompt
memory      sizes and settings → bytes by phase (pure)
rehearsal   a few small steps of the real trainer → seconds per step
outcome     the record of a run → what came of it
"""
