"""The paper: protocol, plan, meta-episode, rewards, credit. No torch, no input or output."""
