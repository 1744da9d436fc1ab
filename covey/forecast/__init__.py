"""Forecast of a run: memory by phase from the model's config, time from a few steps of the real trainer.

sizes       a recipe's model, data and settings → weights and widths, tokens per prompt, demands; no weight is loaded
memory      sizes and demands → bytes by phase (pure)
step_time   a few steps of the real trainer, or the record of a run → seconds per step
"""
