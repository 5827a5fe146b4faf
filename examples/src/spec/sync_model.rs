//! The name of a synchronisation model or of a plan of several, as typed. Owns its check and its
//! form for people; what the name means is `syncline`'s. Used by `options`, `report` and `session`.

use std::str::FromStr;

use serde::{Deserialize, Serialize};
use syncline::control::Plan;

/// The name of the policy that chooses between BSP and ASP while the job runs.
const SYNC_SWITCH: &str = "sync-switch";

/// A synchronisation model by name, with whatever settings the name itself carries: `bsp`; or a
/// plan of several: `bsp:12.5%+asp`; or `sync-switch`. Parsing checks it; reading JSON does not, so
/// that old reports stay readable.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SyncModel(String);

impl SyncModel {
    /// The name on the command line and in JSON.
    pub fn name(&self) -> &str {
        &self.0
    }

    /// The name for people: in capitals.
    pub fn title(&self) -> String {
        self.0.to_uppercase()
    }

    /// Whether this is the model that the others are compared with.
    pub fn is_base(&self) -> bool {
        self.0 == "bsp"
    }

    /// Whether a policy chooses the model while the job runs.
    pub fn is_chosen_by_policy(&self) -> bool {
        self.0 == SYNC_SWITCH
    }

    /// The plan that the name stands for; none if a policy chooses.
    ///
    /// # Errors
    ///
    /// The name, read from JSON, is none.
    pub fn plan(&self) -> Result<Option<Plan>, syncline::Error> {
        if self.is_chosen_by_policy() { Ok(None) } else { self.0.parse().map(Some) }
    }
}

impl FromStr for SyncModel {
    type Err = String;

    /// Any name that [`Plan`] can be parsed from, which any model's is; else its error's text.
    fn from_str(name: &str) -> Result<Self, String> {
        let model = Self(name.to_owned());
        model.plan().map_err(|error| error.to_string())?;
        Ok(model)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use syncline::ModelKind;

    use super::*;

    /// The model of a name that is known.
    pub(crate) fn model(name: &str) -> SyncModel {
        name.parse().unwrap()
    }

    #[test]
    fn a_model_is_a_checked_name() {
        let osp = model("osp");
        assert_eq!((osp.name(), osp.title().as_str()), ("osp", "OSP"));
        assert!(model("bsp").is_base() && !osp.is_base());
        assert_eq!(serde_json::to_string(&osp).unwrap(), "\"osp\"");
        let error = "bps".parse::<ModelKind>().unwrap_err().to_string();
        assert_eq!("bps".parse::<SyncModel>(), Err(error));
        let stale: SyncModel = serde_json::from_str("\"ssp:3\"").unwrap();
        assert_eq!((stale.name(), stale.title().as_str()), ("ssp:3", "SSP:3"));
    }

    #[test]
    fn a_plan_is_a_name_too() {
        let plan = model("bsp:12.5%+asp");
        assert_eq!(plan.title(), "BSP:12.5%+ASP");
        assert!(!plan.is_base() && !plan.is_chosen_by_policy());
        assert_eq!(plan.plan().unwrap().unwrap().phases().len(), 2);
        let policy = model("sync-switch");
        assert!(policy.is_chosen_by_policy() && policy.plan().unwrap().is_none());
        assert!("bsp+asp".parse::<SyncModel>().unwrap_err().contains("share"));
    }
}
