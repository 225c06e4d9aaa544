"""strixhlo: LLM inference through StableHLO and IREE."""
