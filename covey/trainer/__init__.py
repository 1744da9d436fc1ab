"""GRPOTrainer and the parts of it that touch `transformers.Trainer` or `GRPOConfig`; nothing else lives here."""
