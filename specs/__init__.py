"""The paper as an executable specification: claims, specs that judge any implementation, and proof that specs can fail."""
