"""Random models of one shape in every weight format: our runtime beside torch and MLX on the same GPU."""
