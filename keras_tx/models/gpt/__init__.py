"""GPT-2, Llama and Mistral."""
