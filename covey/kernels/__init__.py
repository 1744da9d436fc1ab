"""Operations on tensors, without a model and without a config; the tests hold a slow reference beside each."""
