// Two values an access, where a product's outputs come in twos; lanes_vec4.wgsl is its twin for four.

alias lanes = vec2f;
