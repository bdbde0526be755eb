"""One file a method: attention maps, rollout, relevance, weighted attention, occlusion, faithfulness."""
