package election

import (
	"fmt"
	"slices"
	"strconv"

	"github.com/fencepost/fencepost/fencing"
)

// SQLSTATEs of refused claims; those of Postgres that mean the same.
const (
	stateInvalidValue = "22023"
	stateNoPrivilege  = "42501"
)

// admits returns a *fencing.Refusal if the claim asks for what its role may not
// have.
func (s Settings) admits(claim fencing.JoinRequest) error {
	resource := strconv.QuoteToASCII(claim.Resource)
	if s.Users != nil && claim.Campaign != fencing.CampaignOff && !slices.Contains(s.Users, claim.User) {
		return &fencing.Refusal{
			SQLState: stateNoPrivilege,
			Message:  fmt.Sprintf("role %s may not campaign for resource %s", strconv.QuoteToASCII(claim.User), resource),
			Hint: "The setting resources.<name>.users of Fencepost lists the roles that may. " +
				"Others can connect with fencepost.campaign=off, to observe.",
		}
	}
	most, asked := s.MaxWorkerTimeout, claim.WorkerTimeout
	if most == 0 || asked < 0 || asked > 0 && asked <= most {
		return nil
	}
	text := asked.String()
	if asked == 0 {
		text = "0 (never)"
	}
	return &fencing.Refusal{
		SQLState: stateInvalidValue,
		Message:  fmt.Sprintf("fencepost.worker_timeout is %s, and resource %s allows %v at most", text, resource, most),
		Hint: fmt.Sprintf("Ask for %v or less, or leave it out (%v is configured). "+
			"The bound is the setting lease.max_worker_timeout of Fencepost; 0s is no bound.", most, s.WorkerTimeout),
	}
}
