#!/bin/sh
# The embedded engine as a container: fetches the demo model once, then serves it on port 8082.
set -eu
python -m app.stack.model_file "$STEELYARD_CACHE_DIR"
exec python -m app.stack.engine_process --host 0.0.0.0 --port 8082 --alias smollm2-135m-instruct \
    --model "$STEELYARD_CACHE_DIR/models/SmolLM2-135M-Instruct.F16.gguf"
