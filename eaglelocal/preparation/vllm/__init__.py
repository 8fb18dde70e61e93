"""Plan a target and its draft for vLLM, and write what starts it: a command, a compose file or Helm values."""
