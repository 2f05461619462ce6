package store

// TrustedIdle is the idle time after which a pooled connection is pinged before use.
const TrustedIdle = trustedIdle

// The sizes of the pools that are not configurable.
const (
	ReadPoolSize  = readPoolSize
	WatchPoolSize = watchPoolSize
)
